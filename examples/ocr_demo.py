"""Compile a real text detector and read a picture with it: the main job from start to end.

The PP-OCRv4 detection model of `rapidocr-onnxruntime` is compiled for 480x480 pictures. A picture is
drawn, its text is read once with the original models and once with the bundle in the detector's
place. The demo fails unless both read the same text.

    make demo            or: python examples/ocr_demo.py --threads 1 --budget 60
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import rapidocr_onnxruntime
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR
from rapidocr_onnxruntime.ch_ppocr_det.utils import DetPreProcess

import collage
from collage.entries import find_entries
from collage.pipeline import compile_model
from collage.report.terminal import TerminalProgress, print_summary

SIDE = 480
LINES = ("COLLAGE", "one executable", "many toolchains", "measured, not guessed")
DETECTOR = Path(rapidocr_onnxruntime.__file__).parent / "models" / "ch_PP-OCRv4_det_infer.onnx"


def draw() -> np.ndarray:
    """Draw the picture: (480, 480, 3) uint8."""
    picture = Image.new("RGB", (SIDE, SIDE), "white")
    pen = ImageDraw.Draw(picture)
    for row, line in enumerate(LINES):
        font = ImageFont.load_default(size=44 - 5 * row)
        pen.text((30, 40 + 110 * row), line, fill="black", font=font)
    return np.asarray(picture)


def read(reader: RapidOCR, picture: np.ndarray) -> tuple[list[str], float]:
    """Return the text lines and the median seconds of one detection."""
    lines, _ = reader(picture)
    detections = []
    for _ in range(7):
        start = time.perf_counter()
        reader.text_det(picture)
        detections.append(time.perf_counter() - start)
    return [line[1] for line in lines or []], statistics.median(detections)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for measuring")
    parser.add_argument("--output", type=Path, default=Path("demo-out/ppocr-v4-det"))
    arguments = parser.parse_args()
    options = collage.Options(
        threads=arguments.threads,
        shapes=({"x": (1, 3, SIDE, SIDE)},),
        measure_budget_s=arguments.budget,
    )
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    entries = find_entries(DETECTOR)
    print_summary(compile_model(entries, options, arguments.output, TerminalProgress()))

    picture = draw()
    reader = RapidOCR(intra_op_num_threads=arguments.threads, use_cls=False)
    detector = reader.text_det
    detector.get_preprocess = lambda _: DetPreProcess(SIDE, "max", detector.mean, detector.std)
    original_text, original_s = read(reader, picture)
    bundle = collage.load(arguments.output)
    detector.infer = lambda batch: list(bundle.run({"x": batch}).values())
    bundle_text, bundle_s = read(reader, picture)

    print(f"\noriginal models   {original_s * 1e3:7.2f} ms a detection   {original_text}")
    print(f"compiled bundle   {bundle_s * 1e3:7.2f} ms a detection   {bundle_text}")
    print(f"report            {(arguments.output / 'report.html').resolve()}")
    if not original_text or original_text != bundle_text:
        print("the texts differ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
