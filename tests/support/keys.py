"""Ed25519 keys of the tests' own, as PEM files."""

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from collage.runtime.envelope import Signer


@dataclass(frozen=True)
class KeyPair:
    private: Path
    public: Path

    @property
    def signer(self) -> Signer:
        return Signer(self.private)

    @property
    def key_id(self) -> str:
        return self.signer.key_id


def make_key(folder: Path, name: str = "ours") -> KeyPair:
    """Write NAME.pem and NAME.pub."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    )
    return KeyPair(private, public)
