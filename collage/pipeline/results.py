"""What makes a compile idempotent, and what decides whether its bundle is used.

A finished request is recorded under the digest of the request and the digest of what its node said of
itself, so the same model with the same options on the same kind of node is finished once:

    results/<request>/<node>.json      CompileResult, sealed      swap

The record comes before the bundle's manifest, and counts only when the manifest is there. Whoever is
killed between the two leaves a record that the next one replaces, and no manifest that nobody knows of.

An alias is moved to a new bundle only when the gate says that it is better than what the alias stands
for. Latencies compare within one environment; where the environment or a library is another, the
standing bundle's numbers mean nothing any more, and what counts is the new bundle's own gate, which has
compared it there with every original framework.
"""

import hashlib
import json
import statistics
from dataclasses import dataclass
from uuid import uuid4

from pydantic import ValidationError

from collage.bundle.manifest import Manifest
from collage.errors import BundleError, StoreError
from collage.pipeline.request import CompileRequest, CompileResult, NodeFacts
from collage.runtime.json_fields import is_digest
from collage.store.aliases import read_record
from collage.store.base import BlobDigest, Store
from collage.store.blobs import seal, unseal
from collage.store.bundle_aliases import assign_alias
from collage.store.bundle_statements import BundleSigning, sign_published
from collage.store.manifests import bundle_key, read_bundle, require_proven

ATTEMPTS = 10
"""Of recording a result; each that fails means that somebody else recorded one."""

BETTER = 0.99
"""Of the standing bundle's latency: a new bundle that is not below has won nothing but noise."""


@dataclass(frozen=True)
class Promotion:
    """What an alias stands for after a compile: its own bundle (`moved` or already), or a better one."""

    bundle: str
    moved: bool
    reason: str


def node_digest(facts: NodeFacts) -> str:
    """Digest of what decides a plan on a node: hardware, driver, toolchains with their versions."""
    text = json.dumps(facts.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_result(store: Store, request: CompileRequest, facts: NodeFacts) -> CompileResult | None:
    """Return what such a request came to on such a node, None where it has not been finished."""
    found = store.read(_key(request, facts))
    result = _parse(found.data) if found else None
    return result if result and _is_published(store, result) else None


def claim_result(
    store: Store, request: CompileRequest, facts: NodeFacts, result: CompileResult
) -> CompileResult:
    """Record a result whose bundle is about to be published; return the one that counts.

    That is another's where another was first: then this one's bundle is not to be published.

    Raises:
        StoreError: the store fails.
    """
    key = _key(request, facts)
    for _ in range(ATTEMPTS):
        found = store.read(key)
        standing = _parse(found.data) if found else None
        if standing and _is_published(store, standing):
            return standing
        record = seal({"result": result.model_dump_json(), "token": uuid4().hex})
        if store.swap(key, record, found.version if found else None):
            return result
    raise StoreError(
        f"{key} in the store {store.url} was written by others in {ATTEMPTS} attempts; run it again"
    )


def promote(
    store: Store,
    alias: str,
    facts: NodeFacts,
    result: CompileResult,
    signing: BundleSigning | None = None,
) -> Promotion:
    """Let `alias` stand for the result's bundle if that is better than what it stands for.

    Args:
        alias: of one version of a model on one environment, so that latencies compare.
        signing: sign the bundle as this version, and the move; a record that no trusted key signed
            then counts as none.

    Raises:
        UnprovenError: the bundle is not proven as fast as the original frameworks.
        BundleError: `signing`, and no trusted key signed the bundle as this model.
        StoreError: the store fails, or somebody else moved the alias at this moment.
    """
    require_proven(store, BlobDigest(result.bundle))
    now = _standing(store, alias, signing)
    if now == result.bundle:
        return Promotion(now, False, "it stands there already")
    standing = _manifest(store, now) if now else None
    better, reason = is_better(facts, result, standing)
    if not better:
        return Promotion(now or "", False, reason)
    bundle = BlobDigest(result.bundle)
    if signing:
        sign_published(store, bundle, signing)
    moved = assign_alias(store, alias, bundle, now, signing=signing.aliases if signing else None)
    return Promotion(result.bundle, moved, reason)


def is_better(
    facts: NodeFacts, result: CompileResult, standing: Manifest | None
) -> tuple[bool, str]:
    """Judge a finished compile against the bundle that an alias stands for; also say why.

    Of several functions the geometric mean counts; a bundle with other functions is another thing.
    """
    if standing is None:
        return True, "the first that passed the gate"
    if standing.provenance.environment_digest != facts.environment.digest:
        return True, "the standing bundle was measured in another environment"
    if changed := _changed_toolchain(standing, facts):
        return True, f"the standing bundle was made by {changed}"
    ours_s = {one.function: one.latency_s.get("collage") for one in result.functions}
    theirs_s = {one.function: one.latency["collage"].seconds for one in standing.gate}
    if ours_s.keys() != theirs_s.keys():
        return True, "the standing bundle has other functions"
    ratios = [theirs / ours for name, ours in ours_s.items() if ours and (theirs := theirs_s[name])]
    if len(ratios) < len(ours_s) or not ratios:
        return True, "the standing bundle's latency is not known"
    ratio = statistics.geometric_mean(ratios)
    if 1 / ratio >= BETTER:
        return False, f"the standing bundle is as fast ({ratio:.2f}x)"
    return True, f"{ratio:.2f}x the standing bundle's speed"


def _changed_toolchain(standing: Manifest, facts: NodeFacts) -> str:
    """Name a toolchain of the bundle that the node has in another version, with both versions."""
    for name, then in sorted(standing.provenance.toolchains.items()):
        now = facts.backends.get(name, "")
        if now != then:
            return f"{then}, and the node has {now or 'none'}"
    return ""


def _standing(store: Store, alias: str, signing: BundleSigning | None) -> BlobDigest | None:
    try:
        record = read_record(store, alias, signing.aliases.keys if signing else None)
    except BundleError:
        return None
    return record.bundle if record else None


def _manifest(store: Store, bundle: BlobDigest) -> Manifest | None:
    """None for a manifest of another schema: nothing can be compared with it."""
    try:
        return Manifest.model_validate_json(read_bundle(store, bundle))
    except ValidationError:
        return None


def _parse(data: bytes) -> CompileResult | None:
    """A record that is damaged or of another version counts as absent: it can be made again."""
    try:
        fields = unseal(data) or {}
        return CompileResult.model_validate_json(fields.get("result") or "")
    except ValueError:
        return None


def _is_published(store: Store, result: CompileResult) -> bool:
    return (
        is_digest(result.bundle) and store.stat(bundle_key(BlobDigest(result.bundle))) is not None
    )


def _key(request: CompileRequest, facts: NodeFacts) -> str:
    return f"results/{request.digest}/{node_digest(facts)}.json"
