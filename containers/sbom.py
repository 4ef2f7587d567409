"""Write the software bill of materials of the image that this runs in: CycloneDX 1.6, JSON.

It lists what is installed, not what was asked for: Python distributions by their metadata, Debian packages by
dpkg's status file. Standard library only, so the smallest image can do it. The same content gives the same
bytes: components are sorted, the serial number is derived from them, and there is no time stamp.

    python -m containers.sbom NAME VERSION FOLDER
"""

import argparse
import json
import re
import uuid
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import cast
from urllib.parse import quote

Component = dict[str, object]
DPKG_STATUS = Path("/var/lib/dpkg/status")
OS_RELEASE = Path("/etc/os-release")


def main(arguments: list[str] | None = None) -> int:
    """Write FOLDER/NAME.cdx.json."""
    parser = argparse.ArgumentParser(prog="containers.sbom", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("version")
    parser.add_argument("folder", type=Path)
    parsed = parser.parse_args(arguments)
    parsed.folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document(parsed.name, parsed.version), indent=1, sort_keys=True)
    (parsed.folder / f"{parsed.name}.cdx.json").write_text(text + "\n")
    return 0


def document(name: str, version: str) -> Component:
    """Describe image `name` as a CycloneDX document."""
    by_reference = {
        str(component["bom-ref"]): component
        for component in (*_python_components(), *_debian_components())
    }
    components = [by_reference[reference] for reference in sorted(by_reference)]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([name, version, components], sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": version}},
        "components": components,
    }


def _python_components() -> Iterator[Component]:
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        yield _component(
            name,
            distribution.version,
            f"pkg:pypi/{name}@{quote(distribution.version)}",
            stated_license(distribution),
        )


def stated_license(distribution: Distribution) -> str:
    """The licence as the distribution states it; "" where it states none, or a whole text."""
    fields = cast("Message[str, str]", distribution.metadata)  # that is what it is
    stated = fields.get("License-Expression") or fields.get("License") or ""
    if stated and len(stated) <= 80 and "\n" not in stated:
        return stated
    classifiers = distribution.metadata.get_all("Classifier") or []
    names = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith("License ::")]
    return "; ".join(names)


def _debian_components() -> Iterator[Component]:
    if not DPKG_STATUS.is_file():
        return
    release = re.search(r'^VERSION_ID="?([^"\n]+)', OS_RELEASE.read_text(), re.MULTILINE)
    suffix = f"&distro=debian-{release[1]}" if release else ""
    for paragraph in DPKG_STATUS.read_text(encoding="utf-8").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Status): (.+)$", paragraph, re.M))
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={fields['Architecture']}"
            yield _component(name, version, purl + suffix, "")


def _component(name: str, version: str, purl: str, license_name: str) -> Component:
    component: Component = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if license_name:
        component["licenses"] = [{"license": {"name": license_name}}]
    return component


if __name__ == "__main__":
    raise SystemExit(main())
