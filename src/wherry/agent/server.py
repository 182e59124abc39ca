"""The agent's end of the stream: objects by name, a thread for each call, errors as Wherry's.

Invariant: a call is of a method of an object's interface, with arguments of its types; all else is refused. When the
input ends, so does the agent, in whatever it does: that is the death of a daemon, from which moves recover.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from wherry.agent.lease import Lease
from wherry.base.errors import Bug, Code, Failed, WherryError
from wherry.hostlink.frames import Malformed, Splitter, pack
from wherry.hostlink.interface import Interface
from wherry.hostlink.remote import ENDS
from wherry.hostlink.values import to_plain

log = logging.getLogger("wherry.agent")
_THREADS = 64
"""Calls at the same time: a move has about six, and the daemon looks at all nodes besides."""
_PART = 1 << 16

Objects = dict[str, tuple[Interface, Any]]


class Write(Protocol):
    """Sends one frame."""

    def __call__(self, frame: bytes, /) -> None: ...


class Server:
    """Serves `objects`, to which calls add. `here` maps an argument to its form at this host. Pings prolong the
    `lease`."""

    def __init__(
        self,
        objects: Objects,
        write: Write,
        here: Callable[[Any], Any] = lambda value: value,
        lease: Lease | None = None,
    ) -> None:
        self.objects, self.here = objects, here
        self._lease = lease or Lease(lambda: None)
        self._write, self._writing = write, threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="call")
        self._calls: dict[int, _Caller] = {}
        self._made = 0

    def serve(self, reads: int) -> None:
        """Returns when the stream ends. Malformed for a message that the daemon never sends."""
        splitter = Splitter()
        while data := os.read(reads, _PART):
            for message in splitter.feed(data):
                self.receive(message)

    def receive(self, message: dict[str, Any]) -> None:
        """Takes one message: a call, or a part of a call under way."""
        if "ping" in message:
            if isinstance(stamp := message["ping"], int):
                self._lease.heard(stamp)
            self._send({"pong": self._lease.stamp()})
            return
        number = message.get("id")
        if not isinstance(number, int) or isinstance(number, bool):
            raise Malformed("a call has a number")
        if caller := self._calls.get(number):
            caller.seen |= message.get("seen") is True
            caller.cancelled |= message.get("cancel") is True
        elif "do" in message:
            caller = self._calls[number] = _Caller(lambda text: self._send({"id": number, "looked": text}))
            self._pool.submit(self._answer, number, message, caller)

    def _answer(self, number: int, message: dict[str, Any], caller: _Caller) -> None:
        try:
            answer = {"result": self._call(message, caller)}
        except WherryError as error:
            answer = {"error": _told(error)}
        except Malformed as error:
            answer = {"error": _told(Bug(f"a call that the agent does not know: {message.get('do')!r}", str(error)))}
        except Exception as error:  # an unexpected error is the step's failure, as it is in the daemon
            log.exception("%s", message.get("do"))
            what = f"{message.get('do')} failed"
            answer = {"error": _told(Failed(Code.FAILED, what, f"{type(error).__name__}: {error}", "wherry doctor"))}
        self._calls.pop(number, None)
        self._send({"id": number, **answer})

    def _call(self, message: dict[str, Any], caller: _Caller) -> Any:
        target, name = message.get("on"), message.get("do")
        interface, found = self.objects.get(target, (None, None)) if isinstance(target, str) else (None, None)
        if interface is None or not isinstance(name, str):
            raise Malformed(f"there is no {target!r}")
        method = interface.method(name)
        args, named = method.decode(message.get("with"), caller.monitor, caller.check)
        args, named = tuple(map(self.here, args)), {key: self.here(value) for key, value in named.items()}
        result = getattr(found, name)(*args, **named)
        if name in ENDS and isinstance(target, str):
            del self.objects[target]
        if returned := method.returned:
            return self._keep(returned, result)
        return to_plain(result)

    def _keep(self, interface: Interface, made: Any) -> str:
        with self._writing:
            self._made += 1
            name = str(self._made)
        self.objects[name] = interface, made
        return name

    def _send(self, message: dict[str, Any]) -> None:
        try:
            frame = pack(message)
        except Malformed as error:
            frame = pack({"id": message.get("id"), "error": _told(Bug("an answer cannot be sent", str(error)))})
        with self._writing:
            self._write(frame)


class _Caller:
    """The caller, who waits for a call."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.seen = self.cancelled = False
        self._tell = tell

    def check(self) -> None:
        """CANCELLED when the caller was."""
        if self.cancelled:
            raise Failed(Code.CANCELLED, "it was cancelled")

    def monitor(self, text: str) -> bool:
        """Reports to the caller; True when the caller has answered since then that the other host has made progress."""
        self.check()
        seen, self.seen = self.seen, False
        self._tell(text)
        return seen


def _told(error: WherryError) -> dict[str, str]:
    return {"kind": type(error).__name__, **error.to_dict()}
