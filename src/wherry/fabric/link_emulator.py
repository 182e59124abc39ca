"""One `wherry-link`: the process that carries frames between two sites with latency, jitter, loss and a bandwidth.

It outlives the daemon that started it: commands are datagrams to a socket whose name follows from the link's, and a
socket that refuses them means a dead process. Invariants: a link has at most one process, as a namespace can have only
one TAP of a name; `end` ends it, also of another daemon, and whether or not it answers (see `recorded_process`), as
does the removal of its namespace.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.base.remedies import setup
from wherry.base.wait import readable
from wherry.fabric.recorded_process import RecordedProcess
from wherry.model.spec.fabric import DirectionSpec

TIMEOUT = 30.0
"""Seconds within which it must start, answer or end; each takes milliseconds, on a machine that is not busy."""


class LinkEmulator:
    """The process at one socket, whether it runs or not."""

    def __init__(self, control: Path, name: str) -> None:
        self._control = control
        self._name = name
        self._number = control.with_name(f"{control.name}.pid")
        self._process = RecordedProcess(self._number)

    def start(self, ends: list[tuple[str, str]], mtu: int, rules: tuple[DirectionSpec, DirectionSpec]) -> None:
        """Starts it between two ends: each the path of a namespace, and the name of the TAP to make there."""
        self._control.parent.mkdir(parents=True, exist_ok=True)
        self._process.end()  # a predecessor, whose socket or TAPs are gone
        deadline = time.monotonic() + TIMEOUT
        words = [str(native_program("wherry-ns")), "--number", str(self._number), "--"]
        words += [str(native_program("wherry-link")), "--control", str(self._control), "--mtu", str(mtu)]
        words += [word for netns, tap in ends for word in ("--tap", f"{netns}:{tap}")]
        while True:
            reason = self._spawn([*words, "--set", _text(rules)])
            if reason is None:
                return
            if time.monotonic() > deadline:  # the kernel removes the TAP of a dead process only after a while
                raise Failed(Code.FAILED, f"the emulator of the link {self._name} did not start", reason, setup())
            time.sleep(0.05)

    def alive(self) -> bool:
        """False when the socket refuses commands. A process that is too busy to answer is alive."""
        try:
            self._ask("show", 1.0)
        except (FileNotFoundError, ConnectionError):
            return False
        except TimeoutError:
            return True
        return True

    def set(self, rules: tuple[DirectionSpec, DirectionSpec]) -> bool:
        """Changes the rules, from the next frame on. False when it does not answer."""
        try:
            self._ask(f"set {_text(rules)}", TIMEOUT)
        except OSError:
            return False
        return True

    def counters(self) -> dict[str, Any] | None:
        """Its counters (see native/link/main.c); None when it does not answer."""
        try:
            return self._ask("show", TIMEOUT)
        except OSError:
            return None

    def end(self) -> None:
        """Ends the process, if it runs. A process that hangs is killed: it would keep its TAPs."""
        grace = TIMEOUT
        try:
            self._ask("end", TIMEOUT)
        except OSError:
            grace = 0.0
        self._process.end(grace)
        for path in (self._control, self._number):
            path.unlink(missing_ok=True)

    def _ask(self, line: str, timeout: float) -> dict[str, Any]:
        """The answer to a command. OSError when it does not run, TimeoutError when it does not answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            asking.settimeout(timeout)
            asking.bind("")  # the kernel chooses the address for the answer
            asking.connect(str(self._control))
            asking.send(line.encode())
            answer: dict[str, Any] = json.loads(asking.recv(4096))
        if answer["event"] != "ok":
            raise Failed(Code.FAILED, f"the emulator of the link {self._name} refused: {line}", answer["error"])
        return answer

    def _spawn(self, words: list[str]) -> str | None:
        """Starts the process once; returns why it did not start, or None."""
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at a daemon on a terminal must not reach it
            cwd="/",
        )
        assert process.stdout is not None
        with process.stdout as output:
            line = output.readline() if readable(output, TIMEOUT) else b""
        answer = {}
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
        if answer.get("event") == "ready":
            self._process.child = process
            return None
        process.kill()
        process.wait()
        return str(answer.get("error", "it gave no reason"))


def _text(rules: tuple[DirectionSpec, DirectionSpec]) -> str:
    """The rules in the program's syntax: nanoseconds, bit/s and loss, for both directions."""
    return " ".join(
        f"{round((one.latency or 0) * 1e9)} {round((one.jitter or 0) * 1e9)} {one.bandwidth or 0} {one.loss or 0:.9f}"
        for one in rules
    )
