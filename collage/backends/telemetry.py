"""Libraries that report home when they are imported, imported so that they do not."""

import sys
from types import ModuleType

TELEMETRY = "openvino_telemetry"


def import_openvino() -> ModuleType:
    """Import OpenVINO, which sends an event over the internet unless its telemetry package is missing."""
    hidden = TELEMETRY not in sys.modules
    if hidden:
        sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # imports of it fail
    try:
        import openvino
    finally:
        if hidden:
            del sys.modules[TELEMETRY]
    module: ModuleType = openvino
    return module
