"""Passwords of accounts: argon2id with the defaults of argon2-cffi (RFC 9106, low-memory profile).

Invariant: few are computed at a time, as each takes 64 MiB and some CPU; the text of a password is kept nowhere.
"""

from __future__ import annotations

import secrets
import threading
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from wherry.base.errors import Code, Refused

MIN_LENGTH, MAX_LENGTH = 12, 128
"""Characters of a password (OWASP ASVS 2.1)."""
_HASHING_SLOTS = threading.BoundedSemaphore(2)
_hasher = PasswordHasher()


def hashed(password: str) -> str:
    """The hash to keep. USAGE when the password is too short or too long."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        why = f"it has {len(password)} characters; {MIN_LENGTH} to {MAX_LENGTH} are needed"
        raise Refused(Code.USAGE, "this password cannot be taken", why, "choose a longer one, for instance four words")
    with _HASHING_SLOTS:
        return _hasher.hash(password)


def verified(kept: str, password: str) -> bool:
    """Whether the password is that of a kept hash. An account without one, or none at all (empty), takes as long."""
    with _HASHING_SLOTS:
        try:
            return _hasher.verify(kept or _of_nobody(), password[: MAX_LENGTH + 1]) and bool(kept)
        except (VerificationError, InvalidHashError):
            return False


@cache
def _of_nobody() -> str:
    return _hasher.hash(secrets.token_hex())
