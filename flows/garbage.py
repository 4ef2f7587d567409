"""`collect_garbage`: what no bundle reaches goes; without `delete` it is only listed."""

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
from flows.settings import flow_settings

LISTED = 200


@flow(name="collect-garbage")
def collect_garbage(
    delete: bool = False, older_than_s: float = OLDER_S, keep_s: dict[str, float] | None = None
) -> State:
    """Delete what no bundle in the store reaches and is older than `older_than_s`.

    Args:
        delete: without it, the run only says what would go.
        older_than_s: younger objects may belong to a publisher that is at work.
        keep_s: how long records of a kind stay (`collage.store.gc.Retention`); the rest is the default.
    """
    retention = Retention(**(keep_s or {}))
    store = open_store(flow_settings().store, writes=False)
    sweep = sweep_store(store, older_than_s, dry_run=not delete, retention=retention)
    merged = compact(store, older_than_s, keep_s=retention.costs) if delete else 0
    _list(sweep)
    verb = "would delete" if sweep.dry_run else "deleted"
    message = (
        f"{verb} {len(sweep.deleted)} objects, {sweep.bytes_deleted / (1 << 20):.1f} MiB; "
        f"{sweep.bundles} bundles keep {sweep.kept}"
    )
    get_run_logger().info("%s; %d batches of costs merged", message, merged)
    return Completed(message=message)


@recorded
def _list(sweep: Sweep) -> None:
    rows = [{"object": one.key, "bytes": one.size_bytes} for one in sweep.deleted[:LISTED]]
    create_table_artifact(rows, key=artifact_key("garbage"), description="What no bundle reaches")
