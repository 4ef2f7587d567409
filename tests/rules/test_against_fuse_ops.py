"""Native groups of the benchmark models beside those of TVM's own FuseOps pass on their Relax form.

The pass works on calls; a node of ours may be a composite of several calls (a convolution is the product, a
reshape of the bias and a sum), and is kept whole. That is the only reason for a difference.
"""

from collections import Counter

import pytest

from collage.graph.index_set import indices
from collage.rules.tvm_fusion import fuse_ops
from tests.support.real_models import DRAWN
from tests.support.relax_fusion import relax_fusion_groups

EQUAL = "equal"
PART = "a part of one composite operator"
PART_JOINED = "a part of a composite operator, with its neighbours"
GROUPS = {
    "bert_base_2l": {EQUAL: 33, PART: 1},
    "convnext_tiny": {EQUAL: 122},
    "efficientnet_b0": {EQUAL: 99, PART: 49},
    "gpt2_2l": {EQUAL: 42, PART_JOINED: 1},
    "llama_tiny": {EQUAL: 75, PART: 1},
    "mobilevit_small": {EQUAL: 182, PART: 32},
    "resnet18": {EQUAL: 22, PART: 20},
    "segformer_b0": {EQUAL: 188},
}
"""Groups of the pass by how they differ from ours; docs/rfc.md shows the table."""


@pytest.mark.full
@pytest.mark.parametrize("name", DRAWN)
def test_groups_are_those_of_tvms_pass(name, real_model):
    function = real_model(name).functions[0]
    native = {frozenset(indices(group)) for group in fuse_ops(function.graph)}
    groups = relax_fusion_groups(function)
    assert _differences(groups, native) == GROUPS[name]
    cut = {node for group in groups if group.is_cutting for node in group.nodes}
    only_native = native - {group.nodes for group in groups}
    assert all(cut & group for group in only_native)


def _differences(groups, native):
    unmatched = set(native)
    differences = Counter()
    for group in groups:
        if group.nodes in unmatched:
            unmatched.remove(group.nodes)
            differences[EQUAL] += 1
        elif group.is_cutting:
            differences[PART if len(group.nodes) == 1 else PART_JOINED] += 1
        else:
            differences[f"not among ours: {sorted(group.nodes)}"] += 1
    return differences
