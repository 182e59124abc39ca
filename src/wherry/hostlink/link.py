"""The daemon's end of one stream to the agent of a host.

    -> {"id": 7, "on": "containers", "do": "start", "with": {...}}
    <- {"id": 7, "looked": "text"}     a step's callback         -> {"id": 7, "seen": true}
    <- {"id": 7, "result": ...}, or {"id": 7, "error": {...}}    -> {"id": 7, "cancel": true}
    -> {"ping": stamp}                 every _ASK seconds        <- {"pong": stamp}

A ping has the stamp of the last pong: it confirms to the agent that the pong arrived, and prolongs its right to act
(`wherry.agent.lease`). Each call waits in its own thread. Invariant: when the stream ends, or the agent is silent for
_SILENT seconds, every call raises LostContact, and the next one does so at once.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
import time
from collections.abc import Callable
from typing import Any

from wherry.base.errors import Bug, Code, Failed, LostContact, Refused, WherryError
from wherry.hostlink.frames import Malformed, Splitter, pack
from wherry.hostlink.interface import Arguments, Method

_ASK = 2.0
"""Seconds between two pings."""
_SILENT = 25.0
"""Seconds of silence after which the host counts as silent: more than the twenty for which a busy host may get no
processor, and less than LEASE. The end of the stream is seen at once."""
_STARTS = 60.0
"""The same until the agent has sent its first message: it is a program that starts, on a busy machine perhaps."""
_CHECK = 0.1
"""Seconds between two looks whether the caller was cancelled."""
_PART = 1 << 16
_KINDS: dict[str, type[WherryError]] = {kind.__name__: kind for kind in (Refused, Failed, LostContact)}

Message = dict[str, Any]


class HostLink:
    """A stream to the agent of `host`: descriptors to read and to write, which it owns. `why` is how the stream
    ended, and `kill` ends who carries it; `kinds` are further errors that steps raise."""

    def __init__(
        self,
        host: str,
        reads: int,
        writes: int,
        why: Callable[[], str] = lambda: "",
        kill: Callable[[], None] = lambda: None,
        kinds: tuple[type[WherryError], ...] = (),
    ) -> None:
        self.host = host
        self.boot = ""
        """The boot of the host's kernel, once it is open."""
        self.heard = time.monotonic()
        """When the last message came; before the first, when the connection was begun."""
        self.fell_silent = False
        """True when it ended because no message came for too long."""
        self._stamp = 0
        """Of the last pong."""
        self._asking = threading.Lock()
        self._reads, self._writes, self._why, self._kill = reads, writes, why, kill
        self._kinds = _KINDS | {kind.__name__: kind for kind in kinds}
        self._writing, self._state = threading.Lock(), threading.Lock()
        self._calls: dict[int, queue.SimpleQueue[Message | None]] = {}
        self._last, self._lost = 0, ""
        self._reader = threading.Thread(target=self._read, name=f"host-{host}", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """False once the stream has ended."""
        return not self._lost

    def call(self, target: str, method: Method, arguments: Arguments) -> Any:
        """The plain result of a call. The error that it raised there; LostContact when the stream ends."""
        answers, number = queue.SimpleQueue[Message | None](), 0
        with self._state:
            if not self._lost:
                self._last = number = self._last + 1
                self._calls[number] = answers
        if not number:
            raise self.lost_contact()
        try:
            self._send({"id": number, "on": target, "do": method.name, "with": arguments.plain})
            return self._result(number, answers, arguments)
        finally:
            with self._state:
                self._calls.pop(number, None)

    def close(self) -> None:
        """Ends the stream, and with it the agent. Nodes run on."""
        self._end("it was closed")

    def _result(self, number: int, answers: queue.SimpleQueue[Message | None], arguments: Arguments) -> Any:
        raised: BaseException | None = None
        while True:
            try:
                message = answers.get(timeout=_CHECK if arguments.check and raised is None else None)
            except queue.Empty:
                message = {}
            if message is None:
                raise self.lost_contact()
            if "error" in message:
                raise raised or self._error(message["error"])
            if "result" in message:
                if raised:
                    raise raised
                return message["result"]
            if raised is None:
                raised = self._called_back(number, message, arguments)

    def _called_back(self, number: int, message: Message, arguments: Arguments) -> BaseException | None:
        """Calls the caller back; an exception of that ends the call, once the step has ended there."""
        try:
            if arguments.check:
                arguments.check()
            if arguments.monitor and "looked" in message and arguments.monitor(str(message["looked"])):
                self._send({"id": number, "seen": True})
        except LostContact:
            raise
        except BaseException as error:
            self._send({"id": number, "cancel": True})
            return error
        return None

    def _error(self, data: Any) -> WherryError:
        if not isinstance(data, dict) or not all(isinstance(word, str) for word in data.values()):
            return Bug(f"the agent of host {self.host} reported an error that is none")
        if data.get("kind") == "Bug":
            return Bug(data.get("what", ""), data.get("why", ""))
        code = data.get("code", "")
        kind = self._kinds.get(data.get("kind", ""), Failed)
        known = Code(code) if code in Code.__members__.values() else Code.FAILED
        return kind(known, data.get("what", ""), data.get("why", ""), data.get("next", ""))

    def lost_contact(self) -> LostContact:
        """The error of each call once the stream has ended."""
        what = f"host {self.host} does not answer"
        return LostContact(Code.UNREACHABLE, what, self._lost, f"wherry host show {self.host}")

    def _send(self, message: Message) -> None:
        """LostContact when the stream has ended."""
        frame = memoryview(pack(message))
        with self._writing:
            try:
                while frame and not self._lost:
                    frame = frame[os.write(self._writes, frame) :]
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                reason = self._lost
        if reason:
            self._end(reason)
            raise self.lost_contact()

    def _read(self) -> None:
        try:
            self._end(self._reason_of_end())
        finally:
            os.close(self._reads)

    def _reason_of_end(self) -> str:
        """Delivers messages until the stream ends; then returns why it did."""
        splitter, asked, poller = Splitter(), 0.0, select.poll()
        bound = _STARTS
        poller.register(self._reads, select.POLLIN)
        while not self._lost:
            try:
                ready = poller.poll(_ASK * 1000)
                data = os.read(self._reads, _PART) if ready else b""
                messages = splitter.feed(data)
            except (OSError, Malformed) as error:
                return str(error)
            if ready and not data:
                return self._why() or "its agent ended"
            if data:
                self.heard, bound = time.monotonic(), _SILENT
            elif time.monotonic() - self.heard > bound:
                self.fell_silent = True
                return f"its agent was silent for {bound:g} s"
            for message in messages:
                self._deliver(message)
            if time.monotonic() - asked >= _ASK:
                asked = time.monotonic()
                threading.Thread(target=self._ask, daemon=True, name=f"ask-{self.host}").start()  # a pipe may be full
        return self._lost

    def _ask(self) -> None:
        if self._asking.acquire(blocking=False):  # else the last ping is still on its way
            try:
                with contextlib.suppress(LostContact):
                    self._send({"ping": self._stamp})
            finally:
                self._asking.release()

    def _deliver(self, message: Message) -> None:
        if isinstance(stamp := message.get("pong"), int):
            self._stamp = stamp
        with self._state:
            waiting = self._calls.get(message["id"]) if isinstance(message.get("id"), int) else None
        if waiting:
            waiting.put(message)

    def _end(self, reason: str) -> None:
        with self._state:
            if self._lost:
                return
            self._lost = reason or "the stream ended"
            waiting = list(self._calls.values())
        for each in waiting:
            each.put(None)
        self._kill()  # a writer into a full pipe continues
        with self._writing:
            os.close(self._writes)


def malformed(host: str, error: Malformed) -> Bug:
    """The error for a result of another type than the method's."""
    return Bug(f"the agent of host {host} sent an invalid answer", str(error))
