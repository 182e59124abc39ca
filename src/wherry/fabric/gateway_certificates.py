"""Self-signed certificates of VPN gateways, made by `openssl` for one link in the link's own directory.

Invariant: if a certificate exists, so does its key, whole: both get their names when they are complete.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from wherry.fabric.run_program import output_of

PROGRAM = "openssl"
ELLIPTIC = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
RSA = ("rsa:2048",)


def made(directory: Path, side: int, link: str, kind: Sequence[str]) -> tuple[Path, Path]:
    """Key and certificate of a side's gateway. Makes both if the certificate is missing; `kind` is of the key."""
    key, certificate = (directory / f"{side}.{end}" for end in ("key", "crt"))
    if not certificate.exists():
        subject = f"/CN=wherry {link} gateway {side}"
        halves = {path: path.with_name(f"{path.name}.new") for path in (key, certificate)}
        for half in halves.values():  # left by a killed daemon
            half.unlink(missing_ok=True)
        new = ("-x509", "-newkey", *kind, "-nodes", "-days", "3650", "-subj", subject)
        _openssl("req", *new, "-keyout", str(halves[key]), "-out", str(halves[certificate]))
        for path, whole in halves.items():  # the certificate last
            whole.replace(path)
    return key, certificate


def fingerprint(certificate: Path) -> str:
    """The SHA-256 fingerprint of a certificate."""
    return _openssl("x509", "-in", str(certificate), "-noout", "-fingerprint", "-sha256").strip().partition("=")[2]


def der(file: Path) -> bytes:
    """A PEM file in DER."""
    return base64.b64decode("".join(line for line in file.read_text().splitlines() if not line.startswith("-----")))


def _openssl(*words: str) -> str:
    what = "the certificate of a VPN gateway could not be made"
    return output_of([PROGRAM, *words], what, "apt-get install openssl", seconds=60.0)
