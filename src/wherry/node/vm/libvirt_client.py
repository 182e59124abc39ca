"""libvirt's Python binding: loaded when it is needed, its errors in our words, its waits bounded.

Invariant: nothing else imports libvirt, so a machine without it runs everything but VM nodes. A connection sends
keep-alives, so a libvirtd that hangs ends the call that waits for it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wherry.base.errors import Code, Failed, LostContact, Refused, WherryError

_REMEDY = "make setup-vm"
_OPEN = 60.0
"""Seconds that a libvirtd may take to let us in; one that has just started answers when it has looked around."""
_INTERVAL, _COUNT = 5, 4
"""Seconds between two keep-alives, and how many of them a libvirtd of this machine may leave without an answer."""


@functools.cache
def load() -> Any:
    """The module `libvirt`, its event loop running in a thread. UNSUPPORTED when it is not installed."""
    try:
        import libvirt
    except ImportError as error:
        raise Refused(Code.UNSUPPORTED, "libvirt's Python binding is missing", str(error), _REMEDY) from None
    libvirt.registerErrorHandler(lambda _context, _error: None, None)  # errors are raised; do not print them, too
    libvirt.virEventRegisterDefaultImpl()

    def run() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()

    threading.Thread(target=run, name="libvirt", daemon=True).start()
    return libvirt


def connect(uri: str, seconds: float = _OPEN, count: int = _COUNT) -> Any:
    """A connection to a libvirtd. LostContact when it does not answer within so many seconds.

    It counts as dead when it answers none of `count` keep-alives.
    """
    libvirt = load()
    found: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            found.append(libvirt.open(uri))
            found[0].setKeepAlive(_INTERVAL, count)
        except libvirt.libvirtError as error:
            errors.append(error)

    opening = threading.Thread(target=run, name="libvirt-open", daemon=True)
    opening.start()
    opening.join(seconds)  # keep-alives begin with the connection: nothing else bounds this
    if opening.is_alive() or errors:
        why = reason(errors[0]) if errors else f"it took more than {seconds:.0f} s"
        raise LostContact(Code.UNREACHABLE, f"no libvirtd answers at {uri}", why, "wherry doctor")
    return found[0]


@contextmanager
def translated_errors(what: str, remedy: str = "wherry doctor") -> Iterator[None]:
    """Turns libvirt's error into ours: `what` did not happen, and libvirt's reason."""
    try:
        yield
    except load().libvirtError as error:
        raise translated(what, error, remedy) from None


def translated(what: str, error: Exception, remedy: str = "wherry doctor") -> WherryError:
    """A libvirt error as ours."""
    return Failed(Code.FAILED, what, reason(error), remedy)


def reason(error: Exception) -> str:
    """What libvirt says, in one line, without its prefix."""
    text = " ".join(str(error).split())
    return text.removeprefix("internal error: ").removeprefix("operation failed: ")


def domain(connection: Any, name: str) -> Any | None:
    """The domain of that name; None when there is none. LostContact when its host does not answer."""
    return _found(connection.lookupByName, name)


def by_id(connection: Any, uuid: str) -> Any | None:
    """The domain of that id; None when there is none. LostContact when its host does not answer."""
    return _found(connection.lookupByUUIDString, uuid)


def _found(look_up: Callable[[str], Any], wanted: str) -> Any | None:
    libvirt = load()
    try:
        return look_up(wanted)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        what = f"libvirtd does not tell of {wanted}"
        raise LostContact(Code.UNREACHABLE, what, reason(error), "wherry doctor") from None


def resume(found: Any | None, name: str, host: str) -> None:
    """Lets a paused domain run; nothing to do when it runs. MOVE_FAILED when it is gone, or stays paused."""
    libvirt = load()
    if found is None:
        raise Failed(Code.MOVE_FAILED, f"node {name} is not at {host}", "its virtual machine ended")
    try:
        found.resume()
    except libvirt.libvirtError as error:
        if state(found)[0] != libvirt.VIR_DOMAIN_RUNNING:
            raise translated(f"node {name} could not be thawed", error) from None


def state(found: Any | None) -> tuple[int, int]:
    """State and reason of a domain as libvirt numbers them; (SHUTOFF, 0) when it is gone."""
    libvirt = load()
    if found is not None:
        try:
            number, why = found.state()
            return int(number), int(why)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise LostContact(
                    Code.UNREACHABLE, "libvirtd does not answer", reason(error), "wherry doctor"
                ) from None
    return int(libvirt.VIR_DOMAIN_SHUTOFF), 0
