"""A controller in a process of its own, for tests that kill it: searches one request.

python -m tests.cluster.controller STORE REQUEST NAMESPACE FOLDER, with KUBECONFIG
"""

import sys
from pathlib import Path

from collage.cluster.controller.compile_service import ClusterCompileService
from collage.cluster.controller.environments import read_environments
from collage.cluster.controller.settings import ClusterSettings
from collage.pipeline.request import read_request
from collage.report.terminal import TerminalProgress
from collage.store import open_store


def main() -> None:
    address, digest, namespace, folder = sys.argv[1:]
    settings = ClusterSettings(
        namespace=namespace,
        measure_image="collage/measure:1",
        controller_image="collage/controller:1",
        env_from_secrets=("store",),
        poll_s=0.3,
    )
    environments = read_environments(Path(folder) / "environments.yaml")
    service = ClusterCompileService(address, Path(folder) / "cache", settings, environments)
    service.search(read_request(open_store(address), digest), "main", TerminalProgress())


if __name__ == "__main__":
    main()
