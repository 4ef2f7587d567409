"""Every kind of record against what nobody of this version wrote: a miss that is counted, no exception."""

import json
from types import SimpleNamespace

import pytest

from collage.cluster.controller.compile_service import ClusterCompileService
from collage.cluster.controller.environments import MeasuringEnvironment
from collage.cluster.controller.settings import ClusterSettings
from collage.cluster.kernel_records import KernelIndex
from collage.cluster.shard_reports import ShardReport, ShardReports
from collage.cost import Cost, CostKey, Environment, LocalCostTable, SharedCostTable
from collage.cost.lines import encode_entry
from collage.errors import BundleError, ClusterError, StoreError
from collage.pipeline.request import CompileRequest, NodeInformation, RequestedModel, read_request
from collage.pipeline.results import node_digest, read_result
from collage.store import open_store
from collage.store.aliases import list_aliases, read_alias
from collage.store.blobs import digest_of, put_blob, seal
from collage.store.manifests import bundle_files
from collage.store.records import MAX_RECORD_BYTES, Fields, RecordError, check_records, parse_object
from tests.support.costs import KEYS

ENVIRONMENT = Environment("cpu", "features", 4, 1, "", "cold-1")
KEY = "a" * 64
DEEP = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "store")


def send(store, folder, *lines):
    data = b"".join(lines)
    store.create(f"{folder}/{ENVIRONMENT.digest}/{digest_of(data)}.jsonl", data)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "null", '"x"', DEEP, '{"a": NaN}', '{"a": -Infinity}', '{"a": Infinity}',
     '{"a": ' + "9" * 5000 + "}", b"\xff\xfe", b'{"a": "\xc3"}', " " * (MAX_RECORD_BYTES + 1)],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_what_is_no_object_is_refused(text):
    with pytest.raises(RecordError):
        parse_object(text)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda f: f.text("x"), 7),
        (lambda f: f.text("x"), None),
        (lambda f: f.text("x", maximum=3), "four"),
        (lambda f: f.digest("x"), "a" * 63),
        (lambda f: f.digest("x"), "../../../etc/passwd"),
        (lambda f: f.digest("x"), "A" * 64),
        (lambda f: f.number("x"), "7"),
        (lambda f: f.number("x"), True),
        (lambda f: f.number("x"), -1),
        (lambda f: f.number("x", minimum=1e-9), 0),
        (lambda f: f.number("x"), 10**400),
        (lambda f: f.numbers("x"), [1, [2]]),
        (lambda f: f.numbers("x", count=1), [1, 2]),
        (lambda f: f.items("x"), {"0": 1}),
        (lambda f: f.value("y"), 1),
    ],
)
def test_a_field_has_its_type_range_and_length(read, value):
    with pytest.raises(RecordError, match=r"the field '[xy]' is"):
        read(Fields({"x": value}))


def test_the_first_reason_of_a_batch_is_logged_with_the_count(caplog):
    kinds = {"x": lambda fields: fields.number("x")}
    entries = [{"x": 1}, {"x": "secret"}, None, {"y": 1}, {"x": -1}]
    checked = check_records(entries, kinds, "numbers of a store")
    assert (checked.values, checked.damaged) == ((1.0,), 3)
    (line,) = [record.message for record in caplog.records]
    assert line == (
        "numbers of a store: 3 damaged records count as absent; the first: "
        "the field 'x' is not a number"
    )


def signed(entry):
    return encode_entry(KEYS.signed(entry, f"kernels/{ENVIRONMENT.digest}/"))


KERNELS = [
    {"kernel": ["a"], "blob": KEY},
    {"kernel": KEY},
    {"kernel": KEY, "blob": "../../etc/passwd"},
    {"kernel": KEY, "blob": 7},
    {"kernel": KEY * 100, "blob": KEY},
    {"over": 7},
    {"over": ["a"]},
]


@pytest.mark.parametrize("entry", KERNELS, ids=str)
def test_a_damaged_kernel_line_is_a_miss(store, tmp_path, entry):
    digest = put_blob(store, b"code")
    send(store, "kernels", signed({"kernel": KEY, "blob": digest}), signed(entry))
    index = KernelIndex(store, ENVIRONMENT, KEYS)
    assert index.find([CostKey(KEY)]) == {CostKey(KEY): digest}
    assert index.corrupt == 1


def test_a_kernel_line_of_a_newer_version_is_skipped(store):
    digest = put_blob(store, b"code")
    send(store, "kernels", encode_entry({"foo": 1}), signed({"kernel": KEY, "blob": digest}))
    index = KernelIndex(store, ENVIRONMENT, KEYS)
    assert index.find([CostKey(KEY)]) == {CostKey(KEY): digest}
    assert index.corrupt == 0


def shard_record(**changes):
    return {
        "batch": "b", "index": 0, "pod": "p", "node": "n", "began": 1.0, "ended": 2.0,
        "before_s": {"cpu": 1e-4}, "after_s": {"cpu": 1e-4}, "costs": {}, "built": 0, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{"began": -1.0}, {"before_s": {"cpu": 0.0}}, {"after_s": {"cpu": -1.0}}, {"built": "x"},
     {"costs": []}, {"batch": ["b"]}],
    ids=str,
)  # fmt: skip
def test_a_damaged_record_of_a_shard_is_a_miss(store, changes):
    lines = [shard_record(), shard_record(pod="q", **changes), {"a newer": "kind"}]
    send(store, "shards", *map(encode_entry, lines))
    records = ShardReports(store, ENVIRONMENT)
    records.refresh()
    assert records.of({"b"}) == [ShardReport(**shard_record())]
    assert records.corrupt == 1


def test_a_line_of_a_shared_cost_that_says_nothing_is_a_miss(store, tmp_path):
    lines = [{"void": KEY}, {"void": ["a"], "mark": "b"}, {"key": KEY}, {"newer": 1}]
    send(store, "costs", *map(encode_entry, lines))
    table = SharedCostTable(store, LocalCostTable(tmp_path / "mine", ENVIRONMENT), lambda: 0.0)
    assert table.get(CostKey(KEY)) is None
    assert table.corrupt == 3
    table.put(CostKey(KEY), Cost(1e-3))
    assert table.get(CostKey(KEY)).seconds == 1e-3


def sealed(text):
    return f"{digest_of(text.encode())} {text}".encode()


ALIASES = {
    "nothing": b"",
    "no seal": b"{}",
    "deep": sealed(DEEP),
    "a list": sealed("[]"),
    "a number": sealed('{"bundle": 7}'),
    "no bundle": seal({"token": "x"}),
    "no digest": seal({"bundle": "production", "previous": None}),
    "a previous that is none": seal({"bundle": "0" * 64, "previous": "old"}),
}


@pytest.mark.parametrize("kind", ALIASES)
def test_a_garbled_alias_says_what_to_do(store, kind):
    store.swap("aliases/a.json", ALIASES[kind], None)
    for act in (lambda: read_alias(store, "a"), lambda: list(list_aliases(store))):
        with pytest.raises(StoreError, match=r"aliases/a\.json in the store"):
            act()


@pytest.mark.parametrize("kind", ALIASES)
def test_a_garbled_result_counts_as_absent(store, kind):
    request = CompileRequest(name="m", models=(RequestedModel(model=KEY),))
    facts = NodeInformation(environment=ENVIRONMENT, cache_bytes=1, backends={})
    store.swap(f"results/{request.digest}/{node_digest(facts)}.json", ALIASES[kind], None)
    assert read_result(store, request, facts) is None


@pytest.mark.parametrize("text", ["{}", "[]", '{"name": 1}', DEEP], ids=lambda first: first[:12])
def test_a_request_of_another_version_says_what_to_do(store, text):
    digest = digest_of(text.encode())
    store.create(f"requests/{digest}.json", text.encode())
    with pytest.raises(StoreError, match="submit the model again"):
        read_request(store, digest)


@pytest.mark.parametrize("manifest", [DEEP, "[]", '{"files": 7}', '{"files": {"a": ["b"]}}'])
def test_a_garbled_manifest_of_a_store_says_what_to_do(manifest):
    with pytest.raises(BundleError, match="publish it again"):
        bundle_files(manifest.encode())


def test_text_of_a_record_is_never_in_the_log(store, caplog):
    send(store, "kernels", signed({"kernel": KEY, "blob": "hunter2"}))
    KernelIndex(store, ENVIRONMENT, KEYS).look()
    assert "hunter2" not in json.dumps([record.message for record in caplog.records])


@pytest.mark.parametrize(
    "answer", [b"", b"{}", DEEP.encode(), b"\xff"], ids=lambda first: first[:4]
)
def test_a_garbled_answer_of_a_pod_says_what_to_do(store, tmp_path, answer):
    """The answer is there before it is asked for: a Job of this request has left it."""
    job = SimpleNamespace(name="probe", ended=False, notes={"collage.dev/answer": "answers/a.json"})
    store.create("answers/a.json", answer)
    service = ClusterCompileService(
        store.url,
        tmp_path,
        ClusterSettings(measure_image="m", controller_image="c"),
        {"pool": MeasuringEnvironment()},
    )
    runner = SimpleNamespace(
        jobs=SimpleNamespace(find=lambda labels: [job]),
        wait=lambda name: SimpleNamespace(reason=""),
    )
    service._runner = lambda request: runner
    with pytest.raises(ClusterError, match="use images of one version"):
        service.probe(
            CompileRequest(name="m", models=(RequestedModel(model=KEY),), environment="pool")
        )
