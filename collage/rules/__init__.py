"""Rules: plain data that lists candidates; `find_candidates` applies them to a function."""

from collage.rules.base_rules import DFPattern, Host, OpCallByKind, OpPredicate, Singles
from collage.rules.candidates import (
    find_candidates,
    single_backend_partition,
    supported_nodes,
)
from collage.rules.coalesce import MaxCoalesce, coalesce
from collage.rules.combine import (
    FUSE_OPS_KINDS,
    AllSimple,
    ByAnchor,
    ByKind,
    Combine,
    Constants,
    TupleArg,
    TupleProj,
)
from collage.rules.pattern import Match, Pattern, is_constant, matches, matches_at, op, wildcard
from collage.rules.regions import Regions
from collage.rules.rule import HOST, Candidate, PartitionRule, PartitionSpec
from collage.rules.tvm_fusion import FuseOps, native_rule
from collage.rules.wrap import Composite, OnlyValid, Primitive, Union

__all__ = [
    "FUSE_OPS_KINDS",
    "HOST",
    "AllSimple",
    "ByAnchor",
    "ByKind",
    "Candidate",
    "Combine",
    "Composite",
    "Constants",
    "DFPattern",
    "FuseOps",
    "Host",
    "Match",
    "MaxCoalesce",
    "OnlyValid",
    "OpCallByKind",
    "OpPredicate",
    "PartitionRule",
    "PartitionSpec",
    "Pattern",
    "Primitive",
    "Regions",
    "Singles",
    "TupleArg",
    "TupleProj",
    "Union",
    "coalesce",
    "find_candidates",
    "is_constant",
    "matches",
    "matches_at",
    "native_rule",
    "op",
    "single_backend_partition",
    "supported_nodes",
    "wildcard",
]
