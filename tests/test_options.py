"""Options of a compile: their declarations, and their values on the command line."""

import argparse
from dataclasses import fields, replace
from pathlib import Path

import pytest

from collage.cli.option_arguments import OPTION_NAMES, add_option, written_options
from collage.errors import DimensionError, OptionError
from collage.option_declaration import declaration_of
from collage.options import Options, Precision

WRITTEN = {
    "dims": (["--dim", "batch=2", "--dim", "length=7"], {"batch": 2, "length": 7}),
    "shapes": (["--shape", "x=1,3;y=2", "--shape", "x=2,3"], ({"x": (1, 3), "y": (2,)}, {"x": (2, 3)})),
    "samples": (["--samples", "a", "--samples", "b.npz"], (Path("a"), Path("b.npz"))),
    "inputs": (
        ["--input", "sr=16000", "--input", "sizes=32,24", "--input", "x=a=b/x.npy"],
        {"sr": 16000, "sizes": [32, 24], "x": Path("a=b/x.npy")},
    ),
    "golden": (["--golden", "generated"], "generated"),
    "backends": (["--backends", "onednn,tvm"], ("onednn", "tvm")),
    "device": (["--device", "cuda"], "cuda"),
    "cuda_graphs": (["--no-cuda-graphs"], False),
    "threads": (["--threads", "3"], 3),
    "precision": (["--precision", "auto"], Precision.AUTO),
    "tolerance": (["--tolerance", "0.02"], 0.02),
    "measure_budget_s": (["--budget", "2m"], 120.0),
    "refine_s": (["--refine", "1s"], 1.0),
    "tune_s": (["--tune", "0s"], 0.0),
    "workers": (["--workers", "4"], 4),
    "timeout_s": (["--timeout", "1m"], 60.0),
    "memory_bytes": (["--memory", "1GiB"], 1 << 30),
    "seed": (["--seed", "9"], 9),
    "verify_s": (["--verify", "3s"], 3.0),
    "keep_nan": (["--keep-nan"], True),
    "fallback": (["--no-fallback"], False),
    "exact_only": (["--exact-only"], True),
    "pad": (["--pad", "x:2", "--pad", "y:1,value=-1"], ("x:2", "y:1,value=-1")),
    "allow_slower": (["--allow-slower"], True),
    "cache_dir": (["--cache-dir", "costs"], Path("costs")),
    "store": (["--store", "s3://bucket/prefix"], "s3://bucket/prefix"),
}  # fmt: skip


def parsed(words):
    parser = argparse.ArgumentParser()
    for name in OPTION_NAMES:
        add_option(parser, name)
    return written_options(parser.parse_args(words))


def test_every_field_declares_its_option():
    without_flag = [field.name for field in fields(Options) if not declaration_of(field).flag]
    assert without_flag == ["end_to_end_plans"]


def test_every_option_of_the_command_line_is_listed_here():
    assert list(WRITTEN) == list(OPTION_NAMES)


@pytest.mark.parametrize("name", WRITTEN)
def test_an_option_sets_its_field(name):
    words, value = WRITTEN[name]
    assert Options(**parsed(words)) == replace(Options(), **{name: value})


def test_an_absent_option_leaves_the_default():
    assert Options(**parsed([])) == Options()


def test_options_share_no_mutable_default():
    assert Options().dims == {}
    assert Options().dims is not Options().dims


def test_a_help_text_of_a_command_replaces_the_declared_one():
    parser = argparse.ArgumentParser()
    add_option(parser, "workers")
    add_option(parser, "store", "also check this store")
    shown = " ".join(parser.format_help().split())
    assert "--workers WORKERS worker processes (default 2)" in shown
    assert "--store STORE also check this store" in shown


@pytest.mark.parametrize("words", [["--dim", "batch=zero"], ["--shape", "x=1,?"]])
def test_an_invalid_shape_is_a_dimension_error(words):
    with pytest.raises(DimensionError, match=r"write (NAME|INPUT)="):
        parsed(words)


@pytest.mark.parametrize(
    "option", [{"workers": 0}, {"refine_s": -1.0}, {"device": "tpu"}, {"precision": "fp8"}]
)
def test_invalid_values_are_refused(option):
    with pytest.raises(OptionError, match=next(iter(option))):
        Options(**option)
