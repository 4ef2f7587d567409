"""Traces of a store: those that searches make pass, and those that are more than a schedule do not."""

import json
import zlib
from dataclasses import replace

import pytest

from collage.backends.common.tvm import tuned_schedules as tuned
from collage.backends.common.tvm.lower import lower
from collage.backends.common.tvm.trace_check import MOST_INSTRUCTIONS, check_trace
from collage.backends.common.tvm.tuned_schedules import apply_trace, unscheduled
from collage.backends.cpu.tvm.legalize import legalizers
from collage.cost.lines import encode_entry
from collage.errors import BackendError
from collage.frontend.region import region_relax
from collage.runtime.target import Target
from collage.store import open_store
from collage.store.blobs import digest_of
from collage.store.records import RecordError
from collage.tuning.records import TuningRecord, TuningRecords, workload_digest
from collage.tuning.schedule_search import TraceSearch, trace_text
from collage.tuning.targets import target_on
from tests.backends.regions import convolutions
from tests.support.costs import KEYS
from tests.tuning.regions import ENVIRONMENT, place

W = workload_digest("region", "tvm 1")
ASSEMBLY = (
    'module asm ".section .init_array,\\22aw\\22; .quad evil"\n'
    "define void @evil() { call void @system() ret void }\ndeclare void @system()"
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A function without a schedule, and schedules of it with one thread and with four."""
    folder = tmp_path_factory.mktemp("drawn")
    work = place(folder, folder, convolutions(folder)).work("Conv", "Relu")
    function = convolutions(folder)
    lowered = lower(region_relax(function, work.nodes), legalizers()).function
    traces = []
    for threads in (1, 4):
        search = TraceSearch(
            lowered, target_on(Target.CPU, threads), threads=threads, seed=1, measured=()
        )
        traces += [trace_text(candidate) for candidate in search.draw()]
    assert len(traces) >= 8
    return lowered, traces


def test_every_trace_of_a_search_passes(drawn):
    lowered, traces = drawn
    for trace in traces:
        assert check_trace(json.loads(trace)) == json.loads(trace)
    assert apply_trace(lowered, traces[0]).script() != unscheduled(lowered).script()


def annotated(key, value, place="b0"):
    """Change a trace: the first block or loop gets an annotation."""

    def change(instructions, decisions):
        first = next(i for i, instruction in enumerate(instructions) if place in instruction[3])
        instructions.insert(first + 1, ["Annotate", [place, value], [key], []])
        decisions[:] = [[at + (at > first), value] for at, value in decisions]

    return change


def first_of(kind, part, value):
    """Change a trace: another value in the first instruction of a kind."""

    def change(instructions, decisions):
        next(instruction for instruction in instructions if instruction[0] == kind)[part] = value

    return change


def appended(*instruction):
    return lambda instructions, decisions: instructions.append(list(instruction))


def decided(value):
    def change(instructions, decisions):
        decisions[0][1] = value

    return change


def repeated(instructions, decisions):
    instructions.extend([["EnterPostproc", [], [], []]] * MOST_INSTRUCTIONS)


ATTACKS = {
    "llvm": annotated("pragma_import_llvm", json.dumps(ASSEMBLY)),
    "llvm at a loop": annotated("pragma_import_llvm", json.dumps(ASSEMBLY), "l3"),
    "c": annotated("pragma_import_c", json.dumps("int x;")),
    "another pragma": annotated("pragma_debug_skip_region", 1),
    "a pragma of parallel loops": annotated("pragma_parallel_launch_point", 1),
    "tensorize": annotated("meta_schedule.auto_tensorize", json.dumps("dot_4x4_i8i8s32_neon")),
    "a huge unroll": annotated("pragma_auto_unroll_max_step", 1 << 20),
    "an unroll that is drawn": annotated("pragma_auto_unroll_max_step", "v10"),
    "a text where a number is": annotated("pragma_unroll_explicit", json.dumps("x")),
    "an object": annotated("meta_schedule.vectorize", {"a": 1}),
    "a key that is none": annotated(["pragma_import_llvm"], 1),
    "an intrinsic": appended("Tensorize", ["l3", json.dumps("intrinsic")], [True], []),
    "a layout": appended("TransformLayout", ["b0"], [0, 0, "{}", None, False], []),
    "a type": appended("UnsafeSetDType", ["b0"], [0, "int8"], []),
    "an unrolled loop": appended("Unroll", ["l3"], [], []),
    "no instruction": appended(7),
    "a kind that is none": appended(["Split"], [], [], []),
    "too many": repeated,
    "a huge tile": decided([1, 1, 1 << 40, 1]),
    "a tile that is no number": decided([1, 1, "x", 1]),
    "another memory": first_of("CacheWrite", 2, [0, "global.texture"]),
    "a memory that is none": first_of("CacheWrite", 2, [0, ["global"]]),
    "outputs without end": first_of("GetLoops", 3, ["l1"] * 1000),
    "an output that is none": first_of("GetLoops", 3, ["../x"]),
}


def attacked(trace, attack):
    instructions, decisions = json.loads(trace)
    ATTACKS[attack](instructions, decisions)
    return json.dumps([instructions, decisions], separators=(",", ":"))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_trace_with_more_than_a_schedule_is_refused(drawn, attack):
    lowered, traces = drawn
    trace = attacked(traces[0], attack)
    with pytest.raises(RecordError, match="the trace is refused"):
        check_trace(json.loads(trace))
    with pytest.raises(BackendError, match="the trace is refused"):
        apply_trace(lowered, trace)


def test_the_attack_would_have_reached_the_compiler(drawn, monkeypatch):
    """What the check keeps out: TVM takes the annotation, and links what it carries."""
    lowered, traces = drawn
    monkeypatch.setattr(tuned, "check_trace", lambda trace: trace)
    module = apply_trace(lowered, attacked(traces[0], "llvm"))
    assert "pragma_import_llvm" in module.script()


@pytest.mark.parametrize("attack", ["llvm", "a huge unroll", "an intrinsic", "no instruction"])
def test_a_refused_record_of_a_store_is_a_miss_that_is_counted(drawn, tmp_path, attack):
    _, traces = drawn
    store = open_store(tmp_path / "store")
    good = TuningRecord(W, traces[0], 2e-6, 0.5)
    theirs = TuningRecords(tmp_path / "theirs", ENVIRONMENT, store, keys=KEYS)
    theirs.add(good, "tvm 1")
    theirs.add(replace(good, trace=attacked(traces[0], attack), latency_s=1e-6), "tvm 1")
    theirs.flush()
    mine = TuningRecords(tmp_path / "mine", ENVIRONMENT, store, keys=KEYS)
    assert mine.best(W) == good
    assert mine.of(W) == (good,)
    assert mine.corrupt == 1


def test_a_trace_nested_without_end_is_a_miss(tmp_path):
    store = open_store(tmp_path / "store")
    fields = {"workload": W, "trace": "x", "latency_s": 1e-6, "trial_s": 0.1}
    entry = encode_entry(KEYS.signed(fields, f"tuning/{ENVIRONMENT.digest}/"))
    deep = b"[" * 100_000 + b"]" * 100_000
    text = entry[9:].replace(b'"x"', deep).strip()
    line = b"%08x %s\n" % (zlib.crc32(text), text)
    store.create(f"tuning/{ENVIRONMENT.digest}/{digest_of(line)}.jsonl", line)
    records = TuningRecords(tmp_path / "mine", ENVIRONMENT, store, keys=KEYS)
    assert records.best(W) is None
    assert records.corrupt == 1


def test_a_schedule_out_of_proportion_is_refused(drawn, monkeypatch):
    lowered, traces = drawn
    monkeypatch.setattr(tuned, "MAX_STEPS_RATIO", 0)
    with pytest.raises(BackendError, match="steps, where the function has"):
        apply_trace(lowered, traces[0])
    monkeypatch.setattr(tuned, "MAX_STEPS_RATIO", 4096)
    monkeypatch.setattr(tuned, "MAX_MEMORY_RATIO", 0)
    monkeypatch.setattr(tuned, "SPARE_BYTES", 0)
    with pytest.raises(BackendError, match="bytes, where it has"):
        apply_trace(lowered, traces[0])
