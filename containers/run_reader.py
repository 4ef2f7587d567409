"""Runs of one deployment, read from Prefect's API: those that ended, and those that wait or run.

A run's result in each environment is in the artifact that the flow records (`flows.artifacts.results`),
a table with one row for each. Prefect answers at most 200 runs at once.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx

from containers.run_metrics import EndedRun, EnvironmentRecord

PAGE = 200
RESULTS_KEY = "collage-results-"
"""First part of the keys of the artifacts with results."""
_WAITING = {"state": {"type": {"any_": ["SCHEDULED", "PENDING"]}}}
_RUNNING = {"state": {"type": {"any_": ["RUNNING"]}}}


class ReadError(Exception):
    """Prefect gave no usable answer; the reason has no secrets."""


class RunReader:
    """Reads the runs of a deployment (`flow/name`) of the Prefect server at `api_url`."""

    def __init__(self, client: httpx.AsyncClient, api_url: str, deployment: str) -> None:
        self._client = client
        self._api = api_url.rstrip("/")
        self._deployment = deployment

    async def ended_since(self, after: datetime) -> list[EndedRun]:
        """Return the runs that ended since a time, without records. Raises ReadError."""
        of_these = {**await self._own(), "end_time": {"after_": after.isoformat()}}
        runs: list[EndedRun] = []
        while True:
            page = await self._ask(
                "/flow_runs/filter",
                {
                    "flow_runs": of_these,
                    "sort": "END_TIME_DESC",
                    "limit": PAGE,
                    "offset": len(runs),
                },
            )
            runs += [_ended_run(run) for run in page]
            if len(page) < PAGE:
                return runs

    async def records(self, run: EndedRun) -> tuple[EnvironmentRecord, ...]:
        """Return the records of a run's environments. Raises ReadError."""
        selected = {"flow_run_id": {"any_": [run.id]}, "key": {"like_": f"{RESULTS_KEY}%"}}
        body = {"artifacts": selected, "sort": "CREATED_DESC", "limit": 1}
        artifacts = await self._ask("/artifacts/filter", body)
        return _records(artifacts[0]["data"]) if artifacts else ()

    async def present(self, now: datetime) -> tuple[Mapping[str, int], float]:
        """Return the number of waiting and running runs, and the oldest waiting time in seconds.

        Raises:
            ReadError: Prefect gave no usable answer.
        """
        own = await self._own()
        due = {**own, **_WAITING, "expected_start_time": {"before_": now.isoformat()}}
        counts = {
            "waiting": await self._ask("/flow_runs/count", {"flow_runs": due}),
            "running": await self._ask("/flow_runs/count", {"flow_runs": {**own, **_RUNNING}}),
        }
        first = await self._ask(
            "/flow_runs/filter",
            {"flow_runs": due, "sort": "EXPECTED_START_TIME_ASC", "limit": 1},
        )
        times = [_parsed(run["expected_start_time"]) for run in first]
        return counts, max([0.0, *((now - time).total_seconds() for time in times)])

    async def _own(self) -> dict[str, Any]:
        flow, _, name = self._deployment.partition("/")
        deployment = await self._ask(f"/deployments/name/{quote(flow)}/{quote(name)}")
        return {"deployment_id": {"any_": [deployment["id"]]}}

    async def _ask(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        method = "GET" if body is None else "POST"
        try:
            answer = await self._client.request(method, self._api + path, json=body)
            answer.raise_for_status()
            return answer.json()
        except httpx.HTTPStatusError as error:
            raise ReadError(f"Prefect answered {error.response.status_code} to {path}") from error
        except (httpx.HTTPError, ValueError) as error:
            raise ReadError(f"Prefect gave no answer to {path}: {type(error).__name__}") from error


def _ended_run(run: Mapping[str, Any]) -> EndedRun:
    return EndedRun(
        id=run["id"], state=run["state_type"] or "", state_name=run["state_name"] or "",
        ended=run["end_time"], seconds=float(run.get("total_run_time") or 0.0),
    )  # fmt: skip


def _records(data: str | Sequence[Mapping[str, Any]]) -> tuple[EnvironmentRecord, ...]:
    """Return the records of a table; rows that a newer flow wrote differently are left out."""
    try:
        rows = json.loads(data) if isinstance(data, str) else data
        return tuple(
            EnvironmentRecord(
                environment=str(row["environment"]),
                status=str(row["status"]),
                given_up=row.get("given up") == "yes",
                node_seconds=max(0.0, float(row.get("node seconds") or 0.0)),
                gpu_seconds=max(0.0, float(row.get("GPU seconds") or 0.0)),
            )
            for row in rows
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()


def _parsed(time: str) -> datetime:
    return datetime.fromisoformat(time.replace("Z", "+00:00"))
