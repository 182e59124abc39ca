"""Signature Version 4 as a server checks it (AWS General Reference, "Signature Version 4 signing process").

Invariants: only signed parts are trusted; signatures are compared in constant time; the hash of the body is
computed, never taken from a header. Pure functions.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass

from wherry.service.ec2.errors import Ec2Error

REGION, SERVICE = "local", "ec2"
WINDOW = 300.0
"""Seconds by which the date of a request and the daemon's clock may differ."""
_MOST_SIGNED = 64
"""Headers that one signature may name."""
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 +Credential=(?P<key>[A-Z0-9]{16,32})/(?P<day>[0-9]{8})/(?P<region>[a-z0-9-]{1,32})"
    r"/(?P<service>[a-z0-9-]{1,32})/aws4_request, *SignedHeaders=(?P<signed>[a-z0-9;_-]{1,2048})"
    r", *Signature=(?P<signature>[0-9a-f]{64})",
    re.ASCII,
)
_DATE = re.compile(r"[0-9]{8}T[0-9]{6}Z", re.ASCII)
_SPACES = re.compile(r" +")
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Signed:
    """The signature of a request by its headers. `dated` is in seconds since the epoch."""

    key: str
    signature: str
    names: tuple[str, ...]
    date: str
    dated: float


def parsed(headers: Headers, now: float) -> Signed:
    """The signature by the headers, when its form, scope and date are good. AuthFailure and others."""
    given = _values(headers, "authorization")
    found = _AUTHORIZATION.fullmatch(given[0]) if len(given) == 1 else None
    if found is None:
        code = "IncompleteSignature" if given else "MissingAuthenticationToken"
        raise Ec2Error(code, "The request must be signed once, by Signature Version 4 in its header Authorization", 403)
    if (found["region"], found["service"]) != (REGION, SERVICE):
        what = f"The credential must be scoped to region {REGION} and service {SERVICE}"
        raise Ec2Error("AuthFailure", f"{what}: export AWS_DEFAULT_REGION={REGION}", 401)
    dates = _values(headers, "x-amz-date")
    dated = _seconds(dates[0]) if len(dates) == 1 else None
    if dated is None or found["day"] != dates[0][:8]:
        what = "X-Amz-Date must be there once, on the day of the credential's scope"
        raise Ec2Error("IncompleteSignature", what, 403)
    if abs(now - dated) > WINDOW:
        what = f"its date is more than {WINDOW:.0f} seconds from the daemon's"
        raise Ec2Error("RequestExpired", f"The request has expired: {what}. Set the clock", 400)
    names = tuple(found["signed"].split(";"))
    if len(names) > _MOST_SIGNED or list(names) != sorted(set(names)) or "" in names:
        raise Ec2Error("IncompleteSignature", "SignedHeaders must be names in order, each once", 403)
    ours = {name.decode("latin-1").lower() for name, _ in headers}
    needed = {"host", *(name for name in ours if name.startswith("x-amz-"))}
    if missing := (needed - set(names)) | (set(names) - ours):
        shown = ", ".join(sorted(missing))[:200]
        raise Ec2Error("IncompleteSignature", f"These headers are not there, or not signed: {shown}", 403)
    return Signed(found["key"], found["signature"], names, dates[0], dated)


def is_right(signed: Signed, secret: str, method: str, path: str, headers: Headers, body: bytes) -> bool:
    """Whether the signature is that of this request, which has no query, with this secret."""
    digest = hashlib.sha256(body).hexdigest()
    told = _values(headers, "x-amz-content-sha256")
    lines = [f"{name}:{','.join(map(_trimmed, _values(headers, name)))}" for name in signed.names]
    canonical = "\n".join([method, path, "", *lines, "", ";".join(signed.names), digest])
    scope = f"{signed.date[:8]}/{REGION}/{SERVICE}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", signed.date, scope, hashlib.sha256(canonical.encode("latin-1")).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in (signed.date[:8], REGION, SERVICE, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    right = hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), signed.signature)
    return right and told in ([], [digest])


def _values(headers: Headers, name: str) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.decode("latin-1").lower() == name]


def _trimmed(value: str) -> str:
    return _SPACES.sub(" ", value.strip())


def _seconds(date: str) -> float | None:
    """A date as ISO 8601 has it without separators; None for anything else."""
    if not _DATE.fullmatch(date):
        return None
    try:
        found = datetime.datetime.strptime(date, "%Y%m%dT%H%M%SZ")
        return found.replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        return None
