"""`collect_garbage`: deletes unreachable objects of the store; without `delete` it only lists them."""

from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed

from collage.cost.batches import compact
from collage.store import open_store
from collage.store.gc import OLDER_S, Retention, Sweep
from collage.store.gc import collect_garbage as sweep_store
from flows.artifacts import recorded
from flows.names import artifact_key
from flows.settings import flow_settings, release_name

LISTED = 200


@flow(name="collect-garbage")
def collect_garbage(
    delete: bool = False, older_than_s: float = OLDER_S, keep_s: dict[str, float] | None = None
) -> State:
    """Delete unreachable objects of the store older than `older_than_s`.

    Args:
        delete: True deletes; False only lists the candidates.
        older_than_s: least age of a deleted object, in seconds; younger ones may belong to a publisher.
        keep_s: lifetimes of kinds of records, in seconds (`collage.store.gc.Retention`); kinds without an
            entry have the default.
    """
    retention = Retention(**(keep_s or {}))
    store = open_store(flow_settings().store, writes=False)
    sweep = sweep_store(store, older_than_s, dry_run=not delete, retention=retention)
    merged = compact(store, older_than_s, keep_s=retention.costs) if delete else 0
    _list(sweep)
    verb = "would delete" if sweep.dry_run else "deleted"
    message = (
        f"{verb} {len(sweep.deleted)} objects, {sweep.bytes_deleted / (1 << 20):.1f} MiB; "
        f"{sweep.bundles} bundles keep {sweep.kept_blobs}"
    )
    if sweep.retained:
        message += f"; a retention rule of the storage keeps {len(sweep.retained)} others"
    get_run_logger().info("%s; %d batches of costs merged", message, merged)
    return Completed(message=message)


@recorded
def _list(sweep: Sweep) -> None:
    rows = [{"object": entry.key, "bytes": entry.size_bytes} for entry in sweep.deleted[:LISTED]]
    key = artifact_key("garbage", release_name())
    create_table_artifact(rows, key=key, description="What no bundle reaches")
