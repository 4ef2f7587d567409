"""A publisher in a process of its own, to run beside others or to be killed.

python -m tests.store.publisher once ADDRESS FOLDER ALIAS       publish one bundle
python -m tests.store.publisher forever ADDRESS FOLDER ALIAS    publish ever new ones

It says "ready", waits for a line, and then begins.
"""

import json
import os
import sys
from pathlib import Path

from collage.store import open_store
from collage.store.blobs import digest_of
from collage.store.bundles import publish_bundle


def make_bundle(folder, number):
    (folder / "model.so").write_bytes(
        os.urandom(6 << 20) if number % 4 == 3 else os.urandom(1 << 18)
    )
    (folder / "plan.json").write_text(f"[{number}, {os.getpid()}]")
    files = {name: digest_of(folder / name) for name in ("model.so", "plan.json")}
    manifest = {
        "schema_version": 3, "gate": [], "executable": "model.so", "functions": [], "threads": 1,
        "cpu": {"model": "cpu", "features": []}, "libraries": {}, "files": files,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))


def main():
    mode, address, folder, alias = sys.argv[1:]
    store = open_store(address)
    print("ready", flush=True)
    sys.stdin.readline()
    if mode == "once":
        created = publish_bundle(store, Path(folder), [alias])
        print(json.dumps({"bundle": created.digest, "moved": created.moved}))
    number = 0
    while mode == "forever":
        make_bundle(Path(folder), number)
        publish_bundle(store, Path(folder), [alias])
        number += 1


if __name__ == "__main__":
    main()
