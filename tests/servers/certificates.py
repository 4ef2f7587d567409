"""A certificate authority of the tests' own, with one certificate for 127.0.0.1."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

VALID = datetime.timedelta(days=2)


def write_certificates(folder: Path, name: str, service_ip: str) -> None:
    """Write ca.crt, server.crt (for `name`), server.key and accounts.key (signs tokens) into `folder`."""
    authority, key = _key(), _key()
    ca = _certificate("collage-tests", authority, None, authority, ())
    names = ("localhost", "kubernetes", "kubernetes.default.svc", "127.0.0.1", service_ip)
    server = _certificate(name, key, ca, authority, names)
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    for name, content in (("server.key", key), ("accounts.key", _key())):
        (folder / name).write_bytes(_private(content))


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _certificate(name, key, ca, signer, names):
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now_s = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now_s - datetime.timedelta(minutes=5))
        .not_valid_after(now_s + VALID)
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .add_extension(_usage(ca is None), critical=True)
    )
    if names:
        alternatives = x509.SubjectAlternativeName([_general(host) for host in names])
        builder = builder.add_extension(alternatives, critical=False)
    return builder.sign(signer, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_encipherment=not authority, key_cert_sign=authority,
        crl_sign=authority, content_commitment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
