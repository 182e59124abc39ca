"""libvirt's Python binding: loaded on demand, errors translated, waits bounded.

Invariant: no other module imports libvirt, so a machine without it runs everything except VM nodes. Connections send
keep-alives, so a call to a hung libvirtd ends.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wherry.base.errors import Code, Failed, LostContact, Refused, WherryError
from wherry.base.remedies import setup

log = logging.getLogger("wherry.vm")
_REMEDY = setup("setup-vm")
_EVENT_PAUSE = 0.1
"""Seconds after an error of the event loop."""
OPEN = 60.0
"""Seconds that a libvirtd may take to accept a connection; a newly started one probes its drivers first."""
_hanging: dict[str, threading.Thread] = {}
"""By URI, an attempt to connect that outlived its time limit. It cannot be cancelled, and may have a process of ssh.
The next caller waits for it instead of adding another, so a libvirtd that hangs for a day costs one of each."""
KEEPALIVE_SECONDS, KEEPALIVES = 5, 18
"""Seconds between keep-alives, and how many in a row a libvirtd may leave unanswered before it counts as dead: a busy
one may start a guest for a minute. The connection to a killed one is closed at once."""


@functools.cache
def load() -> Any:
    """The module `libvirt`, its event loop running in a thread. UNSUPPORTED when it is not installed."""
    try:
        import libvirt
    except ImportError as error:
        raise Refused(Code.UNSUPPORTED, "libvirt's Python binding is missing", str(error), _REMEDY) from None
    libvirt.registerErrorHandler(lambda _context, _error: None, None)  # errors are raised, so they need not be printed
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_run_events, args=(libvirt,), name="libvirt", daemon=True).start()
    return libvirt


def _run_events(libvirt: Any) -> None:
    """Runs libvirt's event loop for ever, also after an error: without it no keep-alive is sent, so calls to a hung
    libvirtd would never end, and no event is reported."""
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError as error:
            log.warning("libvirt's event loop failed, and continues: %s", reason(error))
            time.sleep(_EVENT_PAUSE)


def connect(uri: str, seconds: float = OPEN) -> Any:
    """A connection to a libvirtd. LostContact when it does not answer within `seconds`.

    The connection counts as dead when KEEPALIVES in a row are unanswered.
    """
    libvirt = load()
    if (earlier := _hanging.get(uri)) is not None:
        earlier.join(seconds)
        if earlier.is_alive():
            raise _no_answer(uri, f"waited {seconds:.0f} s")
    found: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            found.append(libvirt.open(uri))
            found[0].setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVES)
        except libvirt.libvirtError as error:
            errors.append(error)

    opening = threading.Thread(target=run, name="libvirt-open", daemon=True)
    opening.start()
    opening.join(seconds)  # keep-alives start only after the connection, so open() itself is unbounded
    if opening.is_alive():
        _hanging[uri] = opening
    if opening.is_alive() or errors:
        raise _no_answer(uri, reason(errors[0]) if errors else f"waited {seconds:.0f} s")
    return found[0]


def _no_answer(uri: str, why: str) -> LostContact:
    return LostContact(Code.UNREACHABLE, f"no libvirtd answers at {uri}", why, "wherry doctor")


def is_alive(connection: Any) -> bool:
    """False when the connection is broken or closed."""
    try:
        return bool(connection.isAlive())
    except load().libvirtError:
        return False


@contextmanager
def translated_errors(what: str, remedy: str = "wherry doctor") -> Iterator[None]:
    """Translates a libvirt error into Failed: `what` failed, with libvirt's reason."""
    try:
        yield
    except load().libvirtError as error:
        raise translated(what, error, remedy) from None


def translated(what: str, error: Exception, remedy: str = "wherry doctor") -> WherryError:
    """A libvirt error as Failed."""
    return Failed(Code.FAILED, what, reason(error), remedy)


def reason(error: Exception) -> str:
    """libvirt's message in one line, without its prefix."""
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
        what = f"libvirtd did not answer about {wanted}"
        raise LostContact(Code.UNREACHABLE, what, reason(error), "wherry doctor") from None


def resume(found: Any | None, name: str, host: str) -> None:
    """Resumes a paused domain; does nothing when it runs. MOVE_FAILED when it is gone or remains paused."""
    libvirt = load()
    if found is None:
        raise Failed(Code.MOVE_FAILED, f"node {name} is not at {host}", "its virtual machine ended")
    try:
        found.resume()
    except libvirt.libvirtError as error:
        if state(found)[0] != libvirt.VIR_DOMAIN_RUNNING:
            raise translated(f"node {name} could not be thawed", error) from None


def state(found: Any | None) -> tuple[int, int]:
    """libvirt's state and reason numbers of a domain; (SHUTOFF, 0) when it is gone."""
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
