"""Libraries that report home, told not to: Collage sends nothing that its user did not ask for.

They read these variables when they start, so the variables are set before any of them is imported: here,
which `collage` does first of all, by the plug-in before it opens ONNX Runtime (for programs without Python),
and in images, Jobs and the chart. A user's own value is overruled: a process that imports Collage reports
nothing. OpenVINO has no variable; `collage.backends.telemetry` imports it without its telemetry package.
"""

import os
from collections.abc import Mapping
from types import MappingProxyType

TELEMETRY_OFF: Mapping[str, str] = MappingProxyType(
    {
        "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime: its API is too late, events are written by then
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",  # Prefect's client; MLflow knows no other word than "true"
    }
)
"""Environment of every process that runs Collage: variable to value."""


def turn_telemetry_off() -> None:
    """Set the variables in this process, and so in those that it starts."""
    os.environ.update(TELEMETRY_OFF)
