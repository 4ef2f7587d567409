"""The models of the benchmarks: eight skeletons of this repository, five trained models from PyPI."""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SKELETONS = (
    "bert_base_2l", "convnext_tiny", "efficientnet_b0", "gpt2_2l", "llama_tiny", "mobilevit_small",
    "resnet18", "segformer_b0",
)  # fmt: skip


@dataclass(frozen=True)
class BenchmarkModel:
    """A model file with the options for its dynamic dimensions."""

    name: str
    path: Path
    arguments: tuple[str, ...] = ()


def skeletons(work: Path, names: Sequence[str] = SKELETONS) -> list[BenchmarkModel]:
    """Fill the skeletons with their weights under `work` (once)."""
    missing = [name for name in names if not (work / f"{name}.onnx").is_file()]
    if missing:
        command = [sys.executable, str(ROOT / "models" / "fill.py"), str(work), *missing]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [BenchmarkModel(name, work / f"{name}.onnx") for name in names]


def trained() -> list[BenchmarkModel]:
    """The OCR models inside the packages rapidocr-onnxruntime and rapidocr, where installed."""
    models = []
    for package, name, pattern, shape in (
        ("rapidocr_onnxruntime", "ppocr_v4_det", "ch_PP-OCRv4_det_infer.onnx", "1,3,480,480"),
        ("rapidocr_onnxruntime", "ppocr_v4_rec", "ch_PP-OCRv4_rec_infer.onnx", "1,3,48,320"),
        ("rapidocr_onnxruntime", "ppocr_cls", "ch_ppocr_mobile_v2.0_cls_infer.onnx", "1,3,48,192"),
        ("rapidocr", "ppocr_v6_det", "*v6*det*.onnx", "1,3,480,480"),
        ("rapidocr", "ppocr_v6_rec", "*v6*rec*.onnx", "1,3,48,320"),
    ):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        for file in sorted((Path(spec.origin).parent / "models").glob(pattern))[:1]:
            models.append(BenchmarkModel(name, file, ("--shape", f"x={shape}")))
    return models


def chosen_models(work: Path, names: str | None) -> list[BenchmarkModel]:
    """Return the models with these names, separated by commas; all models by default."""
    selected = names.split(",") if names else None
    work.mkdir(parents=True, exist_ok=True)
    models = [*skeletons(work), *trained()]
    return [model for model in models if selected is None or model.name in selected]


def model_options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options common to all benchmarks over the models."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks"), help="folder of RESULTS.md"
    )
    parser.add_argument("--models", help="comma-separated names; default all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "collage-bench")
    return parser


def store_of(model: BenchmarkModel, work: Path) -> Path:
    """Return the folder of this model's costs, shared by the benchmarks, of every environment."""
    return work / "store" / model.name
