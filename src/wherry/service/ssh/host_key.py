"""The daemon's own key, by which clients of SSH know it again.

Invariant: root alone can read it; it stays as it is once it was made, as clients trust it.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from wherry.base.atomic_write import write_atomically
from wherry.base.errors import Code, Refused


def private_key(directory: Path) -> bytes:
    """The key as OpenSSH writes it (ED25519); it is made when it is not there. INVALID_FILE when it is damaged."""
    path = directory / "ssh_host_key"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        directory.mkdir(mode=0o711, exist_ok=True)
        made = ed25519.Ed25519PrivateKey.generate()
        form, plain = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        text = made.private_bytes(serialization.Encoding.PEM, form, plain)
        write_atomically(path, text, 0o600)
    public_key(text)
    return text


def public_key(private: bytes) -> str:
    """The public part, as a line of known_hosts has it. INVALID_FILE."""
    try:
        key = serialization.load_ssh_private_key(private, None)
    except ValueError:
        what = "the daemon's own key for SSH is damaged"
        raise Refused(Code.INVALID_FILE, what, "", "remove ssh_host_key in the directory tls of its state") from None
    form = serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, form).decode()


def fingerprint(public: str) -> str:
    """The fingerprint of a public key, as OpenSSH shows it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
