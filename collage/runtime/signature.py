"""Detached Ed25519 signatures of a bundle's manifest, which names every file by its digest.

Digests prove that a bundle is what somebody published; a signature proves who. It lies beside the
manifest as `manifest.json.<key>.sig`, where <key> is the beginning of the public key's digest, so that
several keys can sign one bundle and keys can be changed without a gap. Ed25519 has one signature for a
key and a text: signing again gives the same file.

Keys are PEM files as `openssl genpkey -algorithm ed25519` makes them. Needs the extra `sign`
(`cryptography` alone: OpenSSF's model-signing brings sigstore and its clients, for the same Ed25519).
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from collage.errors import BundleError, OptionError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

MANIFEST = "manifest.json"
SUFFIX = ".sig"


def sign_folder(folder: Path, key_file: Path) -> Path:
    """Sign the bundle's manifest with a private key; return the signature's file.

    Raises:
        OptionError: no such key, or `cryptography` is not installed.
        BundleError: the folder cannot be read or written.
    """
    key = _private_key(key_file)
    try:
        signature = key.sign((folder / MANIFEST).read_bytes())
        file = folder / signature_name(key.public_key())
        file.write_bytes(b64encode(signature) + b"\n")
    except OSError as error:
        raise BundleError(f"{folder} cannot be signed: {error.strerror or error}") from error
    return file


def verify_folder(folder: Path, key_file: Path) -> None:
    """Refuse a bundle whose manifest the key did not sign; the files are for `verify_files`.

    Raises:
        OptionError: no such key, or `cryptography` is not installed.
        BundleError: the signature is missing or wrong.
    """
    key = _public_key(key_file)
    from cryptography.exceptions import InvalidSignature

    name = signature_name(key)
    try:
        manifest = (folder / MANIFEST).read_bytes()
        signature = b64decode((folder / name).read_bytes().strip(), validate=True)
        key.verify(signature, manifest)
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise BundleError(
            f"{folder} is not signed by the key {key_file}: {missing} is missing. Publish it with "
            "--sign-key, or verify it with the key of whoever did"
        ) from None
    except (InvalidSignature, ValueError):
        raise BundleError(
            f"{folder / name} is no signature of its manifest by the key {key_file}: one of them was "
            "changed. Do not use the bundle; fetch it again and find out who changed it"
        ) from None


def signature_name(key: "Ed25519PublicKey") -> str:
    """Name of the file with this key's signature."""
    digest = hashlib.sha256(key.public_bytes_raw()).hexdigest()
    return f"{MANIFEST}.{digest[:16]}{SUFFIX}"


def signature_files(folder: Path) -> list[Path]:
    """All signatures in a bundle's folder."""
    return sorted(folder.glob(f"{MANIFEST}.*{SUFFIX}"))


def _private_key(file: Path) -> "Ed25519PrivateKey":
    serialization, ed25519 = _cryptography()
    with _explained(file, "private"):
        key = serialization.load_pem_private_key(file.read_bytes(), None)
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise ValueError("another kind of key")
        return key


def _public_key(file: Path) -> "Ed25519PublicKey":
    serialization, ed25519 = _cryptography()
    with _explained(file, "public"):
        key = serialization.load_pem_public_key(file.read_bytes())
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise ValueError("another kind of key")
        return key


def _cryptography() -> tuple[ModuleType, ModuleType]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise OptionError(
            f"signatures need cryptography ({error}): pip install 'collage[sign]'"
        ) from None
    return serialization, ed25519


@contextmanager
def _explained(file: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OptionError(f"the key {file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError):
        raise OptionError(
            f"{file} is no {kind} Ed25519 key in PEM without a passphrase: make one with `openssl "
            "genpkey -algorithm ed25519`, and its public half with `openssl pkey -pubout`"
        ) from None
