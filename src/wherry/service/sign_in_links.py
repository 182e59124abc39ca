"""Links that sign in once: codes for accounts, which are kept in memory, digested, and for minutes.

Invariant: a code is taken at most once, also by two requests at the same time. A code has the stamp that its
account had when the code was made: the caller of `take` compares it with the present one.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time

LINK_SECONDS = 300.0
"""How long a code is good."""
_MAX_CODES = 100
"""Codes that are good at the same time; a new one replaces the oldest."""


class SignInLinks:
    """Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, tuple[str, str, float]] = {}
        """By digest of the code: the account, its stamp, and until when. In the order in which they were made."""

    def add(self, user: str, stamp: str = "") -> str:
        """A new code that signs in as the account, with a stamp of it."""
        code = secrets.token_hex(32)
        with self._lock:
            while len(self._users) >= _MAX_CODES:
                del self._users[next(iter(self._users))]
            self._users[_digest(code)] = (user, stamp, time.monotonic() + LINK_SECONDS)
        return code

    def take(self, code: str) -> tuple[str, str] | None:
        """The account of a code, which is none any more, and its stamp; None for a wrong, used or old one."""
        with self._lock:
            user, stamp, until = self._users.pop(_digest(code), ("", "", 0.0))
        return (user, stamp) if user and time.monotonic() < until else None


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
