"""Imports of libraries with telemetry, without the telemetry."""

import sys
from types import ModuleType

TELEMETRY = "openvino_telemetry"


def import_openvino() -> ModuleType:
    """Import OpenVINO without its telemetry package; with it, the import sends an event to the internet."""
    hidden = TELEMETRY not in sys.modules
    if hidden:
        sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # its import fails
    try:
        import openvino
    finally:
        if hidden:
            del sys.modules[TELEMETRY]
    module: ModuleType = openvino
    return module
