"""The hold of the netns fabric: keeps the frames for a node that is on its way, and delivers them when it is there.

The work is done by `wherry-hold`, a process in the destination's namespace. It is started before the node stops and
then waits, so that `divert`, `release` and `give_back`, during which the node stands still, are one line to it and one
from it:

    -> (start)           <- {"event": "ready"}
    -> divert            <- {"event": "holding"}       the MAC is drawn to this host, frames are kept
    -> release pN.I      <- {"event": "released", ...} the port is plugged, what was kept is with the node
                         <- {"event": "sent", ...}     the node has sent data, or `silent`; the program ends
    -> return NETNS pN.I <- {"event": "returned", ...} the source's port is plugged and has what was kept
    -> drop              <- {"event": "dropped"}       or the end of its input: a killed daemon leaves no hold behind

Invariant: the program ends with its hold, and its TAP device with the program.
"""

from __future__ import annotations

import json
import select
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.fabric.protocol import HoldReport
from wherry.model.network import Port

TIMEOUT = 5.0
"""Seconds for an answer, which takes less than a millisecond."""
LIMIT = 64 * 2**20
"""Bytes that are kept: more than all the TCP windows towards one node; what comes after is lost as on any network."""


class NetnsPacketHold:
    """A hold at one host for one port."""

    def __init__(
        self, netns: str, bridge: str, interface: str, port: Port, netns_of: Callable[[str], str] | None = None
    ) -> None:
        """`netns_of` gives the path of a host's namespace, for a port that frames go back to."""
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
            start_new_session=True,  # an interrupt of a daemon on a terminal is not meant for it
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
        # The kernel takes tens of milliseconds to remove the TAP, and a node waits for our return.
        threading.Thread(target=self._see_it_out, name="hold").start()
        return HoldReport(frames=answer["frames"], bytes=answer["bytes"], held=answer["held_us"] / 1e6)

    def first_sent(self, timeout: float) -> float | None:
        try:
            return self._sent.result(timeout)
        except NotYet:
            return None

    def _see_it_out(self) -> None:
        at: float | None = None
        try:
            at = self._expect("sent")["at_us"] / 1e6
        except (Failed, OSError, ValueError):
            pass  # it was silent, or dropped meanwhile
        finally:
            self._sent.set_result(at)
            self._end()

    def give_back(self, source: Port) -> HoldReport:
        if self._netns_of is None:
            raise self._failure(f"it does not know the network of {source.host}")
        self._tell(f"return {self._netns_of(source.host)} {self._interface}")
        return HoldReport(frames=self._expect("returned")["frames"])

    def drop(self) -> None:
        self._end()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except (OSError, ValueError):  # ended, or ended by us
            raise self._failure(f"it was told to {line} when it had ended") from None

    def _expect(self, event: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], TIMEOUT)[0]:
            raise self._failure(f"no answer {event!r} within {TIMEOUT:g} s")
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        if answer.get("event") != event:
            raise self._failure(str(answer.get("error", "")) or f"it ended before {event!r}")
        return answer

    def _failure(self, reason: str) -> Failed:
        said = ""
        if self._process.poll() is not None and self._process.stderr is not None and not self._process.stderr.closed:
            said = self._process.stderr.read().decode(errors="replace").strip()
        return Failed(Code.FAILED, f"{self._name} failed", said or reason, "wherry doctor")

    def _end(self) -> None:
        """Ends the program by the end of its input; a program that does not mind is killed. Idempotent."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
