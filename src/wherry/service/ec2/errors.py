"""Errors of the EC2 Query API: codes of EC2's API reference (page "Error codes"), and the code of each of ours."""

from __future__ import annotations

from wherry.base.errors import Code, WherryError


class Ec2Error(Exception):
    """An error as it is answered: `code` of EC2's list, a message, and the status of HTTP."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


_CODES: dict[Code, tuple[str, int]] = {
    Code.USAGE: ("InvalidParameterValue", 400),
    Code.INVALID_FILE: ("InvalidParameterValue", 400),
    Code.NOT_FOUND: ("InvalidParameterValue", 400),
    Code.NAME_TAKEN: ("InvalidParameterValue", 400),
    Code.NO_CAPACITY: ("InsufficientInstanceCapacity", 400),
    Code.INCOMPATIBLE_HOST: ("InsufficientInstanceCapacity", 400),
    Code.UNSUPPORTED: ("UnsupportedOperation", 400),
    Code.PERMISSION: ("UnauthorizedOperation", 403),
    Code.UNAUTHENTICATED: ("AuthFailure", 401),
    Code.QUOTA_EXCEEDED: ("InstanceLimitExceeded", 400),
    Code.TOO_MANY: ("RequestLimitExceeded", 503),
    Code.WRONG_STATE: ("IncorrectInstanceState", 400),
    Code.HOST_DOWN: ("Unavailable", 503),
    Code.UNREACHABLE: ("Unavailable", 503),
}


def of_wherry(error: WherryError) -> Ec2Error:
    """The same error in EC2's words. An unforeseen one is InternalError, without its cause."""
    code, status = _CODES.get(error.code, ("InternalError", 500))
    if code == "InternalError":
        return Ec2Error(code, "the request failed in an unforeseen way; the daemon's log has it", status)
    text = str(error)
    return Ec2Error(code, f"{text}. Next: {error.next}" if error.next else text, status)


def invalid(name: str, value: str, why: str) -> Ec2Error:
    """InvalidParameterValue for a parameter's value, which is shown in part."""
    return Ec2Error("InvalidParameterValue", f"Value ({value[:64]}) for parameter {name} is invalid. {why}")


def unsupported(what: str, why: str) -> Ec2Error:
    """UnsupportedOperation."""
    return Ec2Error("UnsupportedOperation", f"{what} is not supported: {why}")
