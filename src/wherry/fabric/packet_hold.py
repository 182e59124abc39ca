"""The hold of the netns fabric: buffers the frames for a moving node, and delivers them when it has arrived.

The work is done by `wherry-hold`, a process in the destination's namespace. It is started before the freeze, so that
`divert`, `release` and `give_back`, which lie within the downtime, take one line to it and one from it:

    -> (start)           <- {"event": "ready"}
    -> divert            <- {"event": "holding"}       the MAC is drawn to this host, frames are buffered
    -> release pN.I      <- {"event": "released", ...} the port is plugged, the node has the buffered frames
                         <- {"event": "sent", ...}     the node has sent data, or `silent`; the program ends
    -> return NETNS pN.I <- {"event": "returned", ...} the source's port is plugged and has the buffered frames
    -> drop              <- {"event": "dropped"}       also at the end of its input: a killed daemon leaves no hold

Invariant: the program ends with its hold, and its TAP device with the program.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.base.wait import readable
from wherry.fabric.protocol import HoldReport
from wherry.model.network import Port

TIMEOUT = 30.0
"""Seconds within which it must answer, which takes less than a millisecond, on a machine that may be busy. The death of
the process is seen at once."""
LIMIT = 64 * 2**20
"""Size of the buffer in bytes: more than all TCP windows towards one node. Frames beyond it are dropped."""


class NetnsPacketHold:
    """A hold at one host for one port."""

    def __init__(
        self, netns: str, bridge: str, interface: str, port: Port, netns_of: Callable[[str], str] | None = None
    ) -> None:
        """`netns_of` maps a host to the path of its namespace; `give_back` needs it."""
        self._interface = interface
        self._netns_of = netns_of
        self._sent: Future[float | None] = Future()
        self._name = f"the hold for {port.owner} at {port.host}"
        tap = f"t{interface[1:]}"
        arguments = [
            "--bridge",
            bridge,
            "--tap",
            tap,
            "--mac",
            port.mac,
            "--address",
            port.address,
            "--limit",
            str(LIMIT),
        ]
        self._process = subprocess.Popen(
            [native_program("wherry-ns"), "--net", netns, "--", native_program("wherry-hold"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at a daemon on a terminal must not reach it
        )
        try:
            self._expect("ready")
        except Exception:
            self.drop()
            raise

    def divert(self) -> None:
        self._tell("divert")
        self._expect("holding")

    def release(self) -> HoldReport:
        self._tell(f"release {self._interface}")
        answer = self._expect("released")
        # In a thread: the kernel takes tens of milliseconds to remove the TAP, and the node is frozen until we return.
        threading.Thread(target=self._await_first_sent, name="hold").start()
        held = answer["held_us"] / 1e6
        return HoldReport(frames=answer["frames"], bytes=answer["bytes"], lost=answer["lost"], held=held)

    def first_sent(self, timeout: float) -> float | None:
        try:
            return self._sent.result(timeout)
        except NotYet:
            return None

    def _await_first_sent(self) -> None:
        at: float | None = None
        try:
            at = self._expect("sent")["at_us"] / 1e6
        except (Failed, OSError, ValueError):
            pass  # the node was silent, or the hold was dropped
        finally:
            self._sent.set_result(at)
            self._end()

    def problem(self) -> str:
        return "" if self._process.poll() is None else f"{self._name} ended with {self._process.returncode}"

    def give_back(self, source: Port) -> HoldReport:
        if self._netns_of is None:
            raise self._failure(f"it has no access to the network of {source.host}")
        self._tell(f"return {self._netns_of(source.host)} {self._interface}")
        answer = self._expect("returned")
        return HoldReport(frames=answer["frames"], lost=answer["lost"])

    def drop(self) -> None:
        self._end()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except (OSError, ValueError):  # it ended, or `_end` closed its input
            raise self._failure(f"it had ended before the command {line!r}") from None

    def _expect(self, event: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not readable(self._process.stdout, TIMEOUT):
            raise self._failure(f"no answer {event!r} within {TIMEOUT:g} s")
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        if answer.get("event") != event:
            raise self._failure(str(answer.get("error", "")) or f"it ended before {event!r}")
        return answer

    def _failure(self, reason: str) -> Failed:
        errors = ""
        if self._process.poll() is not None and self._process.stderr is not None and not self._process.stderr.closed:
            errors = self._process.stderr.read().decode(errors="replace").strip()
        return Failed(Code.FAILED, f"{self._name} failed", errors or reason, "wherry doctor")

    def _end(self) -> None:
        """Ends the program by closing its input; kills it when it does not end. Idempotent."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # the program has ended, and did not read all commands
                    stream.close()
        try:
            self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
