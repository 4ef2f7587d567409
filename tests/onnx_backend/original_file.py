"""A node test as the original file of a bundle: text, sequences and maps, which no executable returns."""

from pathlib import Path

import onnxruntime

from collage.errors import CollageError
from collage.frontend.onnxruntime_session import session_options
from collage.frontend.original_file import write_original
from collage.frontend.original_interface import OriginalInterface
from collage.runtime.bundle_folder import BundleFolder
from collage.runtime.fallback import Fallback
from collage.runtime.original_session import OriginalSession
from collage.store.blobs import digest_of
from tests.onnx_backend.node_tests import NodeTest, Value, values_differ
from tests.onnx_backend.results import ORIGINAL_FILE, Outcome, Result


def judge_original_file(test: NodeTest, interface: OriginalInterface, folder: Path) -> Result:
    """Run the file in the session that serves; its answers are the test's, or ONNX Runtime's own."""
    folder.mkdir()
    (file,) = write_original(test.file, folder)
    fallback = Fallback("onnxruntime", file.name, interface.inputs, interface.outputs)
    verified = BundleFolder(folder).open_verified(file.name, digest_of(file))
    session = OriginalSession(fallback, {file.name: verified}, 1)
    for feed, stated in zip(test.feeds, test.stated, strict=True):
        expected = onnxruntime_answer(test, feed)
        try:
            actual = list(session.run(feed).values())
        except CollageError as error:
            reason = refusal_reason(str(error), runs=expected is not None)
            return Result(test.name, ORIGINAL_FILE, Outcome.SKIPPED, reason)
        defect = values_differ(stated, actual)
        if defect and (expected is None or values_differ(expected, actual)):
            return Result(test.name, ORIGINAL_FILE, Outcome.WRONG, defect)
    return Result(test.name, ORIGINAL_FILE, Outcome.PASSED)


def refusal_reason(reason: str, *, runs: bool) -> str:
    """Return the reason, with a mark where ONNX Runtime itself runs the test."""
    return f"refused, though ONNX Runtime runs it: {reason}" if runs else reason


def onnxruntime_answer(test: NodeTest, feed: dict[str, Value]) -> list[Value] | None:
    """Return the outputs of unoptimised ONNX Runtime; None where it does not run the test."""
    try:
        session = onnxruntime.InferenceSession(
            str(test.file), session_options("ORT_DISABLE_ALL"), providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, dict(feed)))
    except Exception:
        return None
