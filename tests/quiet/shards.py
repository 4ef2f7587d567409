"""A batch for a measuring pod: the candidates of a small model on ONNX Runtime."""

from pathlib import Path

from collage.cluster.shards import Batch, ShardRequest
from collage.measure.cost_key import CostKeys
from collage.pipeline.compile_context import open_compile_context
from collage.pipeline.compile_service import node_information
from collage.pipeline.request import RequestOptions, submit
from collage.pipeline.search_stage import enumerated_function, imported, model_sweep
from collage.runtime.target import Target
from collage.store import open_store
from collage.store.blobs import put_blob


def put_batch(model: Path, folder: Path, size: int) -> str:
    """Put a batch of `size` candidates into the store `folder`; return its digest."""
    store = open_store(str(folder))
    request = submit(store, model, options=RequestOptions(backends=("onnxruntime",)))
    facts = node_information(request)
    with open_compile_context(request.compile_options(store.url, folder / "cache")) as session:
        function = imported(model, session).functions[0]
        sweep = model_sweep(function, Target.CPU, facts.cache_bytes)
        key = CostKeys([function], session.backends, facts.environment, sweep)
        requests = list(enumerated_function(function, session).work.values())[:size]
        shard = tuple(
            ShardRequest(
                nodes=hex(work.nodes),
                backend=work.backend,
                variant=work.variant,
                label=work.label,
                key=key(work),
            )
            for work in requests
        )
    batch = Batch(
        request=request.digest, function="main", environment=facts.environment,
        backends=facts.backends, shards=(shard,),
    )  # fmt: skip
    return str(put_blob(store, batch.model_dump_json().encode()))
