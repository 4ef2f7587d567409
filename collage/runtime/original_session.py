"""Session of the original model in its framework, for inputs of any shape and type.

The framework runs in this process, through the plug-in, with the options of the original-file plan that the
gate judges: all optimisations, the bundle's number of threads. It opens at the first call, or by `open`, and
then stays open. A call holds the lock: the original model computes one call at a time.
"""

import os
import threading
from collections.abc import Mapping
from typing import Any

from collage.errors import BundleError, InputError
from collage.runtime.blob import Json, pack
from collage.runtime.bundle_folder import VerifiedFile
from collage.runtime.fallback import Fallback
from collage.runtime.model_values import OutputValue, from_native, to_native
from collage.runtime.plugin import load_plugin

TRUSTED_FOLDER_ADVICE = "move the bundle whole into a folder that only its user may change"


class OriginalSession:
    """The original model of a bundle, callable from any thread, one call at a time."""

    def __init__(self, fallback: Fallback, files: Mapping[str, VerifiedFile], threads: int) -> None:
        """Prepare the session without opening the model.

        Args:
            fallback: the model, its framework, its inputs and outputs.
            files: verified files of the model, by name.
            threads: number of threads of the framework.
        """
        self.fallback = fallback
        self._files = {name: files[name] for name in fallback.files}
        self._threads = threads
        self._lock = threading.Lock()
        self._model: Any = None
        self._names = frozenset(value.name for value in fallback.inputs)

    @property
    def is_open(self) -> bool:
        """Whether the framework holds the model."""
        return self._model is not None

    def open(self) -> None:
        """Open the model in its framework, unless it is open.

        Raises:
            BundleError: the framework is missing here, or refuses the model.
        """
        with self._lock:
            self._opened()

    def run(self, feeds: Mapping[str, object]) -> dict[str, OutputValue]:
        """Compute the outputs for `feeds`, by name; objects are those of `model_values`.

        Raises:
            InputError: an input is missing or unknown, or the framework refuses it.
            BundleError: the model cannot be opened.
        """
        values = self._native(feeds)
        with self._lock:
            model = self._opened()
            try:
                results = model(values)
            except (RuntimeError, ValueError, TypeError) as error:
                raise InputError(
                    f"the original model refuses the inputs ({_first_line(error)}); it takes {self}"
                ) from error
        return {
            output.name: from_native(result, output.type)
            for output, result in zip(self.fallback.outputs, results, strict=True)
        }

    def __str__(self) -> str:
        return ", ".join(map(str, self.fallback.inputs))

    def _native(self, feeds: Mapping[str, object]) -> list[Any]:
        missing = [
            value.name
            for value in self.fallback.inputs
            if value.name not in feeds and not value.has_default
        ]
        parts = [f"unknown input {name!r}" for name in sorted(set(feeds) - self._names)]
        parts += [f"missing input {name!r}" for name in missing]
        if parts:
            raise InputError(f"{', '.join(parts)}; expected {self}")
        return [
            to_native(feeds[value.name], value) if value.name in feeds else None
            for value in sorted(self.fallback.inputs, key=lambda value: value.place)
        ]

    def _opened(self) -> Any:
        """Return the model; the caller holds the lock."""
        if self._model is None:
            self._model = self._open()
        return self._model

    def _open(self) -> Any:
        load_plugin()
        import tvm_ffi

        file = self._files[self.fallback.file]
        weights = self.fallback.weights
        folder = file_folder(self._files[weights]) if weights else ""
        open_original = tvm_ffi.get_global_func("collage.open_original")
        try:
            model = open_original(
                self.fallback.framework, self._settings(), file.library_path(), folder
            )
        except (RuntimeError, ValueError, TypeError) as error:
            raise BundleError(
                f"the original model cannot be opened in {self.fallback.framework}: "
                f"{_first_line(error)}"
            ) from error
        for verified in self._files.values():
            verified.check_unchanged()
        return model

    def _settings(self) -> bytes:
        fallback = self.fallback
        inputs = sorted(fallback.inputs, key=lambda value: value.place)
        header: dict[str, Json] = {"threads": self._threads, "alone": 1}
        if fallback.framework == "onnxruntime":
            header["input_names"] = [value.name for value in inputs]
            header["output_names"] = [value.name for value in fallback.outputs]
        else:
            header["inference_precision"] = fallback.precision
            header["outputs"] = [value.place for value in fallback.outputs]
        return pack(header, [])


def file_folder(file: VerifiedFile) -> str:
    """Return the folder of a verified file, for a framework that opens the file by its name.

    Raises:
        BundleError: the name leads to another file by now, or others may write to it.
    """
    path = file.path.absolute()
    try:
        if file.is_same(os.stat(path, follow_symlinks=False)):
            return str(path.parent)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error
    raise BundleError(f"{path} is not the file that was verified; {TRUSTED_FOLDER_ADVICE}")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
