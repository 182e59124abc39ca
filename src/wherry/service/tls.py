"""The daemon's certificate: of an authority of its own, made on first use, or a given one.

Invariants: keys can be read by root alone; the authority's certificate stays as long as it is valid, as clients trust
it; TLS is 1.2 or newer.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import socket
import ssl
from collections.abc import Collection
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from wherry.base.atomic_write import write_atomically
from wherry.base.errors import Code, Refused

_CA_DAYS, _SERVER_DAYS, _RENEWED_DAYS = 3653, 397, 30
_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """The settings of a server with this certificate. Refused when it cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_into(context, certificate, key)
    return context


def load_into(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Has new connections use another certificate. Refused when it cannot be used."""
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")  # else it asks at the terminal
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or str(error)
        what = f"the certificate {certificate} cannot be used with the key {key}"
        remedy = "name PEM files that belong together, the key without a password"
        raise Refused(Code.INVALID_FILE, what, why, remedy) from None


def own_certificate(directory: Path, names: Collection[str]) -> tuple[Path, Path]:
    """Paths of the server's certificate, for these names and addresses, and of its key; both are made if they are not
    there, end soon, or are for other names."""
    directory.mkdir(mode=0o711, exist_ok=True)
    authority, signing_key = _authority(directory)
    certificate, key = directory / "server.pem", directory / "server.key"
    if not _serves(certificate, key, names, authority):
        own_key = ec.generate_private_key(ec.SECP256R1())
        made = _certificate(sorted(names), own_key.public_key(), authority, signing_key)
        _write_key(key, own_key)
        write_atomically(certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return certificate, key


def authority_path(directory: Path) -> Path:
    """The certificate that clients trust."""
    return directory / "ca.pem"


def fingerprint(certificate: Path) -> str:
    """SHA-256 of a certificate, in hex with colons; empty when it is not there."""
    try:
        der = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    except (OSError, ValueError):
        return ""
    return ":".join(f"{byte:02x}" for byte in hashlib.sha256(der).digest())


def own_names(address: str) -> set[str]:
    """Names and addresses by which a server that listens at `address` is reached, as far as this machine has them."""
    found = {"localhost", socket.gethostname()}
    try:
        unspecified = ipaddress.ip_address(address).is_unspecified
    except ValueError:
        unspecified = False
    if not unspecified:
        return found | {address}
    found |= {"127.0.0.1", "::1"}
    try:
        return found | {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return found


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    path, key_path = authority_path(directory), directory / "ca.key"
    if path.exists() and key_path.exists():
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        if isinstance(key, ec.EllipticCurvePrivateKey) and certificate.not_valid_after_utc > _now() + _days(1):
            if certificate.public_key() == key.public_key():
                return certificate, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Wherry at {socket.gethostname()}"[:64])])
    builder = _builder(name, name, key.public_key(), key.public_key(), _CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    _write_key(key_path, key)
    write_atomically(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644, lasting=True)
    return certificate, key


def _certificate(
    names: list[str], key: ec.EllipticCurvePublicKey, authority: x509.Certificate, signing: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "wherryd")])
    builder = _builder(subject, authority.subject, key, signing.public_key(), _SERVER_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage("digital_signature"), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
    return builder.sign(signing, hashes.SHA256())


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signing: ec.EllipticCurvePublicKey,
    days: int,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(_now() - _days(1)).not_valid_after(_now() + _days(days))
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    return builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing), critical=False)


def _serves(path: Path, key_path: Path, names: Collection[str], authority: x509.Certificate) -> bool:
    """True when the certificate is there, is for these names, and does not end soon."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        found.verify_directly_issued_by(authority)
        general = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # it is damaged, or another authority's: made anew
        return False
    same = set(general) == {_general(name) for name in names} and found.public_key() == key.public_key()
    return same and found.not_valid_after_utc > _now() + _days(_RENEWED_DAYS)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*names: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in names for usage in _USAGES})


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_atomically(path, text, 0o600, lasting=True)
    os.chown(path, os.geteuid(), os.getegid())


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _days(number: int) -> datetime.timedelta:
    return datetime.timedelta(days=number)
