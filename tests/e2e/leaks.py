"""Look for secrets in images: in every file of every layer, deleted ones too, and in what describes an image.

What a secret looks like is a table of patterns, each behind a fixed text that is searched first: a gigabyte
takes seconds. The values of this machine's own secrets (variables whose name says so) are looked for as well,
since a build may carry them along. Examples from documentation are known by how they end.
"""

import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

PATTERNS: Mapping[str, tuple[tuple[bytes, ...], bytes]] = {
    "private key": ((b"-----BEGIN ",), rb"[A-Z ]*PRIVATE KEY-----\\?\s?[\w+/=\s\\]{256,}"),
    "AWS access key": ((b"AKIA", b"ASIA"), rb"[A-Z2-7]{16}\b"),
    "GitHub token": ((b"ghp_", b"gho_", b"ghs_", b"ghu_", b"github_pat_"), rb"\w{36}"),
    "GitLab token": ((b"glpat-",), rb"[\w-]{20}\b"),
    "Google key": ((b"AIza",), rb"[\w-]{35}\b"),
    "Hugging Face token": ((b"hf_",), rb"[A-Za-z]{34}\b"),
    "PyPI token": ((b"pypi-AgE",), rb"[\w-]{60,}"),
    "Slack token": ((b"xoxb-", b"xoxp-", b"xoxa-"), rb"\d{10,}-[\w-]{20,}"),
    "password in a URL": (
        (b"https://", b"http://"),
        rb"[\w.-]{1,64}:[^\s@/:'\"<>{}$()%\[\]*]{6,64}@[\w-]+\.[\w.-]+",
    ),
}
"""Beginning and remainder of a secret, by kind."""
EXAMPLE = re.compile(rb"EXAMPLE|example|password|PRIVATE KEY-----[\s\\n]*\.\.\.")
KNOWN = (
    (r"/libgnutls\.so\.", "private key"),  # of the library's self test
    (r"/apprise/plugins/google_chat\.py$", "Google key"),  # in a comment with an example
    (r"/prefect/runner/storage\.py$", "password in a URL"),  # in a docstring with an example
)
"""Examples that packages publish, by file and kind."""
SECRET_NAME = re.compile(
    r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|(?:API|ACCESS|PRIVATE)_?KEY", re.I
)
SHORTEST = 12
PIECE, OVERLAP = 64 << 20, 8192


def find_secrets(data: bytes, own: Mapping[str, bytes]) -> set[str]:
    """Name the kinds of secrets in the data; never their values."""
    actual = {f"the value of {name}" for name, value in own.items() if value in data}
    for kind, (beginnings, pattern) in PATTERNS.items():
        compiled = re.compile(pattern)
        if any(_begins(data, beginning, compiled) for beginning in beginnings):
            actual.add(kind)
    return actual


def _begins(data: bytes, beginning: bytes, pattern: re.Pattern[bytes]) -> bool:
    """Tell whether there is such a secret, no example, and not in the middle of a word."""
    place = -1
    while (place := data.find(beginning, place + 1)) >= 0:
        match = pattern.match(data, place + len(beginning))
        integer = match and not re.match(rb"\w", data[max(place - 1, 0) : place])
        if integer and not EXAMPLE.search(data, place, match.end()):
            return True
    return False


def own_secrets(environment: Mapping[str, str] = os.environ) -> dict[str, bytes]:
    """Return the values of the variables that hold secrets, by name."""
    return {
        name: value.encode()
        for name, value in environment.items()
        if SECRET_NAME.search(name) and len(value) >= SHORTEST and not Path(value).exists()
    }


def scan(archive: Path, own: Mapping[str, bytes], observed: set[str]) -> Iterator[str]:
    """Say where secrets are in an image's archive; layers in `seen` were scanned with another image."""
    with tarfile.open(archive) as image:
        for member in image:
            if not member.isreg() or member.name in observed:  # layers also have links to them
                continue
            stream = image.extractfile(member)
            assert stream is not None
            if member.name.endswith(".tar"):
                observed.add(member.name)
                with tarfile.open(fileobj=stream) as layer:
                    yield from _scan_members(layer, own)
            else:
                yield from (
                    f"{member.name}: {find_secret}"
                    for find_secret in find_secrets(stream.read(), own)
                )


def _scan_members(layer: tarfile.TarFile, own: Mapping[str, bytes]) -> Iterator[str]:
    for member in layer:
        stream = layer.extractfile(member) if member.isreg() else None
        before = b""
        while stream and (piece := stream.read(PIECE)):
            for kind in find_secrets(before + piece, own):
                if not any(
                    kind == known_kind and re.search(file, member.name)
                    for file, known_kind in KNOWN
                ):
                    yield f"{member.name}: {kind}"
            before = piece[-OVERLAP:]
