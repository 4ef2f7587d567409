"""Write NOTICE: the libraries that the wheel, bundles and images redistribute, and their licences.

The libraries of an image are the distributions of the extras that the Dockerfile installs, and what
those require. Licences are those that the installed distributions state. After a change of dependencies
`make notice` runs this, with the images' version of Python.

    python -m containers.notice
"""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from textwrap import indent

from packaging.requirements import Requirement

from containers.sbom import stated_license

ROOT = Path(__file__).parents[1]
IMAGES = {"controller": "c", "measure": "m", "serve": "s"}
"""Stages of the Dockerfile that install an image's distributions, and the letter of each in NOTICE."""

SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache v2.0": "Apache-2.0",
    "ISC License": "ISC",
    "MIT License": "MIT",
    "MIT license": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "OSI Approved :: Apache Software License": "Apache-2.0",
}
"""SPDX expressions of statements that are not SPDX expressions themselves."""

READ = {
    "colorama": "BSD-3-Clause",
    "cronsim": "BSD-3-Clause",
    "gitdb": "BSD-3-Clause",
    "jinja2": "BSD-3-Clause",
    "jinja2-humanize-extension": "BSD-3-Clause",
    "pyasn1-modules": "BSD-2-Clause",
    "python-dateutil": "Apache-2.0 AND BSD-3-Clause",
    "sqlparse": "BSD-3-Clause",
    "text-unidecode": "Artistic-1.0-Perl OR GPL-2.0-or-later",
}
"""Distributions whose statement does not say which licence of a family; taken from their licence files."""

NVIDIA = "LicenseRef-NVIDIA-Proprietary"
NOT_INSTALLED = {"nvidia-cublas": NVIDIA, "nvidia-cuda-nvrtc": NVIDIA, "nvidia-cudnn-cu13": NVIDIA}
"""Licences of distributions that only images built with CUDA=1 have."""

NOTICE_HEAD = """\
Collage
Copyright the contributors of Collage

Collage is licensed under the Apache License, Version 2.0; see LICENSE.
This file names what the wheel, bundles and images redistribute of others. `make notice` writes it.


The wheel
=========

libtvm_runtime.so and libtvm_runtime_cuda.so are copies from the wheel of Apache TVM (apache-tvm,
Apache-2.0). They contain DLPack (Apache-2.0) and compiler-rt's conversion of half precision (MIT).
libcollage_runtime.so is compiled with the headers of apache-tvm-ffi, openvino and
onednn-devel-cpu-gomp (Apache-2.0). The notices of Apache TVM:

"""

BODY = """

Bundles
=======

A bundle holds no library: its manifest names those that it needs, with their exact versions.
model.so is the code that Apache TVM and the C compiler make of the model. In bundles for NVIDIA
GPUs it also holds kernels that nvcc compiles from the templates of CUTLASS (nvidia-cutlass,
BSD-3-Clause):

"""

TAIL = """

Images
======

The base is Debian's Python image: Python (PSF-2.0) with pip, setuptools and wheel (MIT), and Debian's
packages, each with its licence in /usr/share/doc/PACKAGE/copyright. The Dockerfile adds libgomp1
(GPL-3.0-or-later WITH GCC-exception-3.1) and, in the controller, g++ (GPL-3.0-or-later). OpenVINO's
wheel holds oneTBB (Apache-2.0) and hwloc (BSD-3-Clause).

The table lists the Python distributions of the controller (c), of measuring pods (m) and of model
servers (s). Those with + are in images built with CUDA=1 only. Licence texts lie in the .dist-info
folder of each distribution below /opt/collage/lib, exact versions in /usr/share/sbom.

"""

CUTLASS = "nvidia-cutlass"  # the Dockerfile installs it by itself, without what it requires
TVM_NOTICE = """\
Apache TVM
Copyright 2019-2023 The Apache Software Foundation

This product includes software developed at
The Apache Software Foundation (http://www.apache.org/).

Apache TVM FFI
Copyright 2024-present The Apache Software Foundation

This product includes software developed at
The Apache Software Foundation (http://www.apache.org/).
"""


def main() -> None:
    """Write NOTICE."""
    (ROOT / "NOTICE").write_text(notice())


def notice() -> str:
    """Return the text of NOTICE."""
    table = [f"{name:<36} {letters:<5} {license_of(name)}\n" for name, letters in libraries()]
    cutlass = distribution(CUTLASS).read_text("licenses/LICENSE.txt") or ""
    parts = [NOTICE_HEAD, quote(TVM_NOTICE), BODY, quote(cutlass), TAIL, *table]
    return "".join(parts)


def quote(text: str) -> str:
    """Indent a text of others."""
    return indent(text.strip() + "\n", "    ")


def libraries() -> list[tuple[str, str]]:
    """Return the distributions of the images by name, with the letters of the images, "+" for CUDA=1 only."""
    plain = {image: closure(extras(image, cuda=False)) for image in IMAGES}
    cuda = {image: closure(extras(image, cuda=True)) for image in IMAGES}
    cuda["controller"].add(CUTLASS)
    rows = []
    for name in sorted(set[str]().union(*cuda.values())):
        in_plain = any(name in names for names in plain.values())
        holders = plain if in_plain else cuda
        letters = "".join(letter for image, letter in IMAGES.items() if name in holders[image])
        rows.append((name, letters if in_plain else letters + "+"))
    return rows


def extras(image: str, cuda: bool) -> frozenset[str]:
    """Return the extras of Collage that the Dockerfile installs into `image`."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    stage = dockerfile.partition(f"AS {image}-environment\n")[2].partition("\nFROM ")[0]
    (named,) = re.findall(r"\.whl\)\[([^\]]+)\]", stage)
    for variable, value in re.findall(r"^ARG (\w+)=(\S+)$", stage, re.MULTILINE):
        named = named.replace(f"${{{variable}}}", value)
    named = re.sub(r"\$\{CUDA:\+([^}]*)\}", r"\1" if cuda else "", named)
    return frozenset(named.split(","))


def closure(names: frozenset[str]) -> set[str]:
    """Return the distributions that Collage with the extras `names` requires, directly or not."""
    queue = [Requirement(f"collage[{','.join(sorted(names))}]")]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement = queue.pop()
        node = normal_name(requirement.name), frozenset(requirement.extras)
        if node not in seen:
            seen.add(node)
            queue += requirements(*node)
    return {name for name, _ in seen} - {"collage"}


def requirements(name: str, chosen: frozenset[str]) -> Iterator[Requirement]:
    """Yield what a distribution requires with the extras `chosen`; nothing for those of NOT_INSTALLED."""
    if name == "collage":  # the file, as an installation of this checkout may be older
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        groups = [project["optional-dependencies"][extra] for extra in chosen]
        yield from map(Requirement, sum(groups, project["dependencies"]))
        return
    try:
        texts = distribution(name).requires or []
    except PackageNotFoundError:
        if name not in NOT_INSTALLED:
            raise
        texts = []
    for requirement in map(Requirement, texts):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in chosen | {""}):
            yield requirement


def license_of(name: str) -> str:
    """Return the licence of a distribution as an SPDX expression."""
    if name in READ:
        return READ[name]
    try:
        stated = stated_license(distribution(name))
    except PackageNotFoundError:
        return NOT_INSTALLED[name]
    return SPDX.get(stated, stated)


def normal_name(name: str) -> str:
    """Return a distribution's name in the index's normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
