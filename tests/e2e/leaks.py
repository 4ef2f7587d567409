"""Look for secrets in images: in every file of every layer, deleted ones too, and in what describes an image.

What a secret looks like is a table of patterns, each behind a fixed text that is searched first: gigabytes
take seconds. The values of this machine's own secrets (variables whose name says so) are looked for as well,
since a build may carry them along. Examples from documentation are known by how they end.
"""

import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

PATTERNS: Mapping[str, tuple[bytes, bytes]] = {
    "private key": (b"PRIVATE KEY-----", rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\\?\s?[\w+/=\s\\]{256,}"),
    "AWS access key": (b"AKIA", rb"\bAKIA[A-Z2-7]{16}\b"),
    "AWS session key": (b"ASIA", rb"\bASIA[A-Z2-7]{16}\b"),
    "GitHub token": (b"gh", rb"\b(?:ghp|gho|ghs|ghu)_[A-Za-z0-9]{36}\b|\bgithub_pat_\w{82}\b"),
    "GitLab token": (b"glpat-", rb"\bglpat-[\w-]{20}\b"),
    "Google key": (b"AIza", rb"\bAIza[\w-]{35}\b"),
    "Hugging Face token": (b"hf_", rb"\bhf_[A-Za-z]{34}\b"),
    "PyPI token": (b"pypi-AgE", rb"\bpypi-AgE[\w-]{60,}"),
    "Slack token": (b"xox", rb"\bxox[abprs]-\d{10,}-[\w-]{20,}"),
    "password in a URL": (b"://", rb"https?://[\w.-]{1,64}:[^\s@/:'\"<>{}$()%\[\]*]{6,64}@[\w-]+\.[\w.-]+"),
}  # fmt: skip
EXAMPLE = re.compile(rb"EXAMPLE|example|password|PRIVATE KEY-----[\s\\n]*\.\.\.")
SECRET_NAME = re.compile(
    r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|(?:API|ACCESS|PRIVATE)_?KEY", re.I
)
SHORTEST = 12
PIECE, OVERLAP = 64 << 20, 8192


def find_secrets(data: bytes, own: Mapping[str, bytes]) -> set[str]:
    """Name the kinds of secrets in the data; never their values."""
    found = {f"the value of {name}" for name, value in own.items() if value in data}
    for kind, (fixed, pattern) in PATTERNS.items():
        if fixed in data:
            hits = (match[0] for match in re.finditer(pattern, data))
            if any(not EXAMPLE.search(hit) for hit in hits):
                found.add(kind)
    return found


def own_secrets(environment: Mapping[str, str] = os.environ) -> dict[str, bytes]:
    """Return the values of the variables that hold secrets, by name."""
    return {
        name: value.encode()
        for name, value in environment.items()
        if SECRET_NAME.search(name) and len(value) >= SHORTEST and not Path(value).exists()
    }


def scan(archive: Path, own: Mapping[str, bytes], seen: set[str]) -> Iterator[str]:
    """Say where secrets are in an image's archive; layers in `seen` were scanned with another image."""
    with tarfile.open(archive) as image:
        for member in image:
            stream = image.extractfile(member) if member.name not in seen else None
            if stream is None:
                continue
            if member.name.endswith(".tar"):
                seen.add(member.name)
                with tarfile.open(fileobj=stream) as layer:
                    yield from _scan_members(layer, own)
            else:
                yield from (f"{member.name}: {one}" for one in find_secrets(stream.read(), own))


def _scan_members(layer: tarfile.TarFile, own: Mapping[str, bytes]) -> Iterator[str]:
    for member in layer:
        stream = layer.extractfile(member) if member.isreg() else None
        before = b""
        while stream and (piece := stream.read(PIECE)):
            yield from (f"{member.name}: {one}" for one in find_secrets(before + piece, own))
            before = piece[-OVERLAP:]
