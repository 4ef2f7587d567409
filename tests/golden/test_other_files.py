"""Files outside of stores: the receiver's outbox, an image's bill of materials, the peaks of a machine."""

import importlib.metadata
import json
import sqlite3

import pytest

from collage.measure import peaks
from containers import sbom
from containers.outbox import Outbox, Start
from containers.webhook_signature import Delivery
from tests.support.golden import check_golden
from tests.support.golden_inputs import CPU

METADATA = """Metadata-Version: 2.4
Name: Example_Package
Version: 1.2.3
License-Expression: Apache-2.0
"""
DPKG = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.41-12

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
"""


def test_tables_of_the_outbox(tmp_path):
    """A receiver of the next version opens the file of this one."""
    outbox = Outbox(tmp_path / "outbox.sqlite", 10)
    try:
        outbox.take(Delivery("delivery-1", 100.5), Start("key", "small", "3"), 50.25)
        outbox.postpone(Start("key", "small", "3"), 60.75)
    finally:
        outbox.close()
    database = sqlite3.connect(tmp_path / "outbox.sqlite")
    try:
        tables = [
            name for (name,) in database.execute("SELECT name FROM sqlite_master ORDER BY name")
        ]
        found = {
            name: {
                "columns": [
                    list(column[1:]) for column in database.execute(f"PRAGMA table_info({name})")
                ],
                "rows": [list(row) for row in database.execute(f"SELECT * FROM {name}")],
            }
            for name in ("deliveries", "starts")
        }
    finally:
        database.close()
    check_golden("outbox.json", {"tables": tables, **found})


def test_bills_of_materials(tmp_path, monkeypatch):
    (tmp_path / "METADATA").write_text(METADATA)
    distribution = importlib.metadata.PathDistribution(tmp_path)
    monkeypatch.setattr(sbom, "distributions", lambda: [distribution])
    for name, text in (("DPKG_STATUS", DPKG), ("OS_RELEASE", 'ID=debian\nVERSION_ID="13"\n')):
        file = tmp_path / name
        file.write_text(text)
        monkeypatch.setattr(sbom, name, file)
    assert sbom.main(["collage-serve", "0.1.0", str(tmp_path)]) == 0
    check_golden("sbom.json", json.loads((tmp_path / "collage-serve.cdx.json").read_text()))


@pytest.mark.usefixtures("measured_peaks")
def test_files_of_peaks(tmp_path):
    found = peaks.machine_peaks(CPU, tmp_path)
    (file,) = (tmp_path / "peaks").iterdir()
    assert peaks.machine_peaks(CPU, tmp_path, again=False) == found
    check_golden("peaks.json", {"file": file.name, "content": json.loads(file.read_text())})


@pytest.fixture
def measured_peaks(monkeypatch):
    """The rates of a fixed machine, once."""
    measured = iter([peaks.Peaks(2e11, 3e10, 2e10)])
    monkeypatch.setattr(peaks, "_measure_apart", lambda environment: next(measured))
