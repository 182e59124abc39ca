"""The audit log: the caller, request, time, address and end of each request.

Invariant: neither bodies nor headers are kept, so no secret is.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from wherry.base.clock import now
from wherry.base.text import printable
from wherry.model.accounts import AuditEntry
from wherry.service.context import ServiceContext

log = logging.getLogger("wherry.audit")
_READING = ("GET", "HEAD", "OPTIONS")
_REFUSED = (401, 403, 429)
_MAX_PATH = 512
"""Characters of a path."""
_FLOOD_SECONDS = 1.0


class Audit:
    """Writes the log."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._quiet_until = 0.0

    def wants(self, method: str, path: str, status: int, who: str) -> bool:
        """Whether a request is written down. Of requests that unknown callers made too fast, one a second; pieces of a
        job's input are not."""
        if status == 429 and not who:
            if time.monotonic() < self._quiet_until:
                return False
            self._quiet_until = time.monotonic() + _FLOOD_SECONDS
        changes = method not in _READING and not (method == "PUT" and path.endswith("/input"))
        return changes or status in _REFUSED

    def write(
        self, who: str, address: str, method: str, path: str, status: int, location: str = "", body: bytes = b"",
        code: str = "",
    ) -> None:  # fmt: skip
        """Appends an entry; an error of the database is logged, as the request is answered already. `code` is that of
        the error, where its document is none of ours."""
        what = printable(f"{method} {path}"[:_MAX_PATH])
        operation = location.rpartition("/")[2] if location.startswith("/v1/operations/") else ""
        entry = AuditEntry(
            time=now(), who=who, address=address, what=what, status=status, operation=operation,
            code=code or _code(body),
        )  # fmt: skip
        try:
            self._context.store.accounts.add_audit(entry)
        except Exception:
            log.exception("%s by %s from %s: %s could not be written to the audit log", what, who, address, status)


def _code(body: bytes) -> str:
    """The code of an error's document."""
    try:
        found = json.loads(body) if body else {}
    except ValueError:
        return ""
    return str(found.get("code", ""))[:64] if isinstance(found, Mapping) else ""


def header(message: Mapping[str, Any], name: bytes) -> str:
    """A header of an answer that begins; empty when it has none."""
    return next((value.decode("latin-1") for key, value in message.get("headers", []) if key.lower() == name), "")
