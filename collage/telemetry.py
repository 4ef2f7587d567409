"""Telemetry of libraries, switched off: Collage sends nothing without a request of its user.

The libraries read these variables at their start, so the variables are set before their import: first of all
by `collage`, by the plug-in before it opens ONNX Runtime (for programs without Python), and in images, Jobs
and the chart. The values override a user's: a process with Collage sends no telemetry. OpenVINO has no such
variable; `collage.backends.telemetry` imports it without its telemetry package.
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
