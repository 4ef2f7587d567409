"""Results of requests, and the promotion of bundles to aliases.

The key of a result is the digest of the request and the digest of the node information, so a compile is
idempotent: the same model with the same options on the same kind of node is compiled once:

    results/<request>/<node>.json      CompileResult, sealed      swap

The record is written before the bundle's manifest, and counts only together with it. A process killed
between the two leaves a record without a manifest; the next one replaces it. A manifest always has a record.

An alias moves to a new bundle only if that is better than the current one. Latencies are comparable within
one environment. If the environment or a library changed, the current bundle's numbers are obsolete, and the
new bundle's own gate decides: it compared the bundle with every original framework.
"""

import hashlib
import json
import logging
import statistics
from dataclasses import dataclass
from uuid import uuid4

from pydantic import ValidationError

from collage.bundle.manifest import ManifestDocument
from collage.errors import BundleError, StoreError
from collage.pipeline.request import CompileRequest, CompileResult, NodeInformation
from collage.runtime.json_fields import is_digest
from collage.store.aliases import read_record
from collage.store.base import BlobDigest, Store
from collage.store.blobs import seal, unseal
from collage.store.bundle_aliases import assign_alias
from collage.store.bundle_statements import BundleSigning, sign_published
from collage.store.manifests import bundle_key, read_bundle, require_proven

log = logging.getLogger(__name__)

ATTEMPTS = 10
"""Attempts to record a result; each fails only if another process recorded one."""

BETTER = 0.99
"""Share of the current bundle's latency; a new bundle must be below it, since less is noise."""


@dataclass(frozen=True)
class Promotion:
    """The bundle of an alias after a compile: the new one (`moved` or already there), or a better one."""

    bundle: str
    moved: bool
    reason: str


def node_digest(facts: NodeInformation) -> str:
    """Digest of the node information: hardware, driver, toolchains with versions."""
    text = json.dumps(facts.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_result(
    store: Store, request: CompileRequest, facts: NodeInformation
) -> CompileResult | None:
    """Return the result of a request on a kind of node; None if there is none."""
    stored = store.read(_key(request, facts))
    result = _parse(stored.data) if stored else None
    return result if result and _is_published(store, result) else None


def claim_result(
    store: Store, request: CompileRequest, facts: NodeInformation, result: CompileResult
) -> CompileResult:
    """Record the result of a bundle before its publication; return the valid result.

    The valid result is another one if another process was first: then this bundle is not published.

    Raises:
        StoreError: the store fails.
    """
    key = _key(request, facts)
    for _ in range(ATTEMPTS):
        stored = store.read(key)
        standing = _parse(stored.data) if stored else None
        if standing and _is_published(store, standing):
            return standing
        record = seal({"result": result.model_dump_json(), "token": uuid4().hex})
        if store.swap(key, record, stored.version if stored else None):
            return result
    raise StoreError(
        f"{key} in the store {store.url} was written by others in {ATTEMPTS} attempts; run it again"
    )


def promote(
    store: Store,
    alias: str,
    facts: NodeInformation,
    result: CompileResult,
    *,
    signing: BundleSigning | None = None,
) -> Promotion:
    """Move `alias` to the result's bundle if that is better than the current one.

    Args:
        store: store of bundles and aliases.
        alias: alias of one model version in one environment, so that latencies are comparable.
        facts: information about the node of the result.
        result: result of the compile.
        signing: keys for the bundle and the move; a record without a trusted signature then counts as
            absent. None: no signature.

    Raises:
        UnprovenError: the bundle is not proven as fast as the original frameworks.
        BundleError: `signing`, and no trusted key signed the bundle as this model.
        StoreError: the store fails, or somebody else moved the alias at this moment.
    """
    require_proven(store, BlobDigest(result.bundle))
    current = _standing(store, alias, signing)
    if current == result.bundle:
        return Promotion(current, False, "it stands there already")
    standing = _manifest(store, current) if current else None
    better, reason = is_better(facts, result, standing)
    if not better:
        return Promotion(current or "", False, reason)
    bundle = BlobDigest(result.bundle)
    if signing:
        sign_published(store, bundle, signing)
    moved = assign_alias(
        store, alias, bundle, current, signing=signing.aliases if signing else None
    )
    return Promotion(result.bundle, moved, reason)


def is_better(
    facts: NodeInformation, result: CompileResult, standing: ManifestDocument | None
) -> tuple[bool, str]:
    """Compare a result with the current bundle of an alias; also return the reason.

    The geometric mean over the functions decides. A bundle with other functions is not comparable.
    """
    if standing is None:
        return True, "the first that passed the gate"
    if standing.provenance.environment_digest != facts.environment.digest:
        return True, "the standing bundle was measured in another environment"
    if changed := _changed_toolchain(standing, facts):
        return True, f"the standing bundle was made by {changed}"
    ours_s = {function.function: function.latency_s.get("collage") for function in result.functions}
    theirs_s = {
        function.function: function.latency["collage"].seconds for function in standing.gate
    }
    if ours_s.keys() != theirs_s.keys():
        return True, "the standing bundle has other functions"
    ratios = [theirs / ours for name, ours in ours_s.items() if ours and (theirs := theirs_s[name])]
    if len(ratios) < len(ours_s) or not ratios:
        return True, "the standing bundle's latency is not known"
    ratio = statistics.geometric_mean(ratios)
    if 1 / ratio >= BETTER:
        return False, f"the standing bundle is as fast ({ratio:.2f}x)"
    return True, f"{ratio:.2f}x the standing bundle's speed"


def _changed_toolchain(standing: ManifestDocument, facts: NodeInformation) -> str:
    """Return the first toolchain with another version on the node, with both versions, else ""."""
    for name, bundled in sorted(standing.provenance.toolchains.items()):
        installed = facts.backends.get(name, "")
        if installed != bundled:
            return f"{bundled}, and the node has {installed or 'none'}"
    return ""


def _standing(store: Store, alias: str, signing: BundleSigning | None) -> BlobDigest | None:
    try:
        record = read_record(store, alias, signing.aliases.keys if signing else None)
    except BundleError as error:  # a record without a trusted signature names no bundle
        log.debug("the alias %s counts as absent: %s", alias, error)
        return None
    return record.bundle if record else None


def _manifest(store: Store, bundle: BlobDigest) -> ManifestDocument | None:
    """None for a manifest of another schema: nothing can be compared with it."""
    try:
        return ManifestDocument.model_validate_json(read_bundle(store, bundle))
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


def _key(request: CompileRequest, facts: NodeInformation) -> str:
    return f"results/{request.digest}/{node_digest(facts)}.json"
