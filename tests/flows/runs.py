"""Runs of one small model against one store, with the files that each left there and on its own disk."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import collage
from collage.store import open_store
from collage.store.aliases import list_aliases
from collage.store.bundles import fetch_bundle
from collage.store.manifests import list_bundles
from tests.flows.conftest import OPTIONS
from tests.support.costs import cost_lines
from tests.support.models import small_model


class Runs:
    """Each run is a process, with a local folder by name: another folder is another machine."""

    def __init__(self, server, address, folder, **options):
        self.address, self.folder = address, folder
        folder.mkdir(exist_ok=True)
        self.model = small_model(folder / "small.onnx")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("COLLAGE_")},
            **server.environment, "COLLAGE_STORE": address, "COLLAGE_THREADS": "1",
            "COLLAGE_PROGRESS_EVERY_S": "1", "COLLAGE_RETRY_DELAY_S": "0.1",
            "TEST_OPTIONS": json.dumps({**OPTIONS, **options}),
        }  # fmt: skip

    def tell(self, variables):
        """Let the next runs find these in their environment too."""
        self._environment |= variables

    def start(self, cache="cache", *arguments):
        with (self.folder / f"{cache}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.flows.runner", str(self.model), *arguments],
                env={**self._environment, "COLLAGE_CACHE_DIR": str(self.folder / cache)},
                stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip

    def end(self, process, timeout_s=240):
        text, _ = process.communicate(timeout=timeout_s)
        return json.loads(text.splitlines()[-1])

    def kill(self, process):
        """kill -9 of the run, with which its workers end."""
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def fetched(self, bundle):
        """Fetch a bundle into `folder`/fetched; return its manifest."""
        fetch_bundle(open_store(self.address), bundle, self.folder / "fetched")
        return json.loads((self.folder / "fetched" / "manifest.json").read_text())

    def costs(self):
        """How often each cost is in the store."""
        store = open_store(self.address, writes=False)
        return _count(store.read(entry.key).data for entry in store.entries("costs/"))

    def valid_costs(self):
        """The keys of candidates that can be used, as the store has them."""
        store = open_store(self.address, writes=False)
        data = [store.read(entry.key).data for entry in store.entries("costs/")]
        return {line.key for text in data for line in cost_lines(text) if line.cost.is_valid}

    def measured(self, cache="cache"):
        """How often each cost was measured with this local folder."""
        return _count(file.read_bytes() for file in self.folder.glob(f"{cache}/costs/*.jsonl"))

    def check_one_bundle(self, outcome):
        """Check that there is this bundle and no other, that it is whole, and that it computes."""
        store = open_store(self.address)
        assert [*list_bundles(store)] == [outcome["result"]["bundle"]]
        if outcome["status"] == "optimized":
            (alias,) = list_aliases(store)
            assert (alias.name, alias.bundle) == (outcome["alias"], outcome["bundle"])
        self.fetched(outcome["result"]["bundle"])
        collage.load(self.folder / "fetched").check()


def _count(batches):
    return Counter(line.key for data in batches for line in cost_lines(data))
