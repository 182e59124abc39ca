"""Errors for users: the fault, the reason, and the command to type next.

Four kinds: `Refused` before anything was changed, `Failed` while it was changed, `LostContact` when the other side
stopped answering, `Bug` for a violated invariant. The codes are a closed list shared by the command line, the REST
interface and the documents; each code determines the exit code of the command line.
"""

from __future__ import annotations

from enum import StrEnum

from wherry.base.text import printable


class Code(StrEnum):
    """Stable names of errors."""

    USAGE = "USAGE"
    INVALID_FILE = "INVALID_FILE"
    NOT_FOUND = "NOT_FOUND"
    NAME_TAKEN = "NAME_TAKEN"
    NO_CAPACITY = "NO_CAPACITY"
    UNSUPPORTED = "UNSUPPORTED"
    INCOMPATIBLE_HOST = "INCOMPATIBLE_HOST"
    PERMISSION = "PERMISSION"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    TOO_MANY = "TOO_MANY"
    WRONG_STATE = "WRONG_STATE"
    PARTLY_DONE = "PARTLY_DONE"
    HOST_DOWN = "HOST_DOWN"
    UNREACHABLE = "UNREACHABLE"
    VERSION_MISMATCH = "VERSION_MISMATCH"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    MOVE_FAILED = "MOVE_FAILED"
    JOB_FAILED = "JOB_FAILED"
    TAKEN_DOWN = "TAKEN_DOWN"
    FAILED = "FAILED"
    BUG = "BUG"

    @property
    def exit_code(self) -> int:
        """1 failed, 2 usage, 3 not found, 4 refused, 5 wrong state, 6 partly done, 7 unreachable, 8 taken down."""
        return _EXIT.get(self, 1)

    @property
    def http_status(self) -> int:
        """Status of the HTTP response."""
        return _OWN_HTTP.get(self) or _HTTP.get(self.exit_code, 500)


_EXIT = {
    Code.USAGE: 2,
    Code.INVALID_FILE: 2,
    Code.NOT_FOUND: 3,
    Code.NAME_TAKEN: 4,
    Code.NO_CAPACITY: 4,
    Code.UNSUPPORTED: 4,
    Code.INCOMPATIBLE_HOST: 4,
    Code.PERMISSION: 4,
    Code.UNAUTHENTICATED: 4,
    Code.QUOTA_EXCEEDED: 4,
    Code.TOO_MANY: 4,
    Code.WRONG_STATE: 5,
    Code.PARTLY_DONE: 6,
    Code.HOST_DOWN: 7,
    Code.UNREACHABLE: 7,
    Code.VERSION_MISMATCH: 7,
    Code.TAKEN_DOWN: 8,
    Code.CANCELLED: 130,
}
_OWN_HTTP = {Code.UNAUTHENTICATED: 401, Code.TOO_MANY: 429}
_HTTP = {2: 422, 3: 404, 4: 403, 5: 409, 6: 500, 7: 503, 8: 410, 130: 409, 1: 500}


class WherryError(Exception):
    """An error for the user: `what` happened, `why` (the root cause), `next` (the command or action that helps).

    The texts are printable, whatever names of files and processes are in them."""

    def __init__(self, code: Code, what: str, why: str = "", next: str = "") -> None:
        super().__init__(printable(what))
        self.code = code
        self.what = printable(what)
        self.why = printable(why)
        self.next = printable(next)

    def __str__(self) -> str:
        return ": ".join(part for part in (self.what, self.why) if part)

    def to_dict(self) -> dict[str, str]:
        """The error as it is sent and stored."""
        return {"code": str(self.code), "what": self.what, "why": self.why, "next": self.next}


class Refused(WherryError):
    """Nothing was changed."""


class Failed(WherryError):
    """An action failed; its incomplete results have been removed, except where the text names them."""


class LostContact(WherryError):
    """The other side stopped answering, so its state is unknown."""


class Bug(WherryError):
    """A violated invariant of the program."""

    def __init__(self, what: str, why: str = "") -> None:
        super().__init__(Code.BUG, what, why, "please report this with the output of: wherry doctor")


def from_dict(data: dict[str, str]) -> WherryError:
    """The error from `to_dict`; an unknown code becomes FAILED."""
    try:
        code = Code(data.get("code", "FAILED"))
    except ValueError:
        code = Code.FAILED
    kind: type[WherryError] = Failed
    if code.exit_code in (2, 3, 4, 5):
        kind = Refused
    elif code.exit_code == 7:
        kind = LostContact
    return kind(code, data.get("what", "the service reported an error"), data.get("why", ""), data.get("next", ""))
