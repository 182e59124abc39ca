"""One `wherry-link`: the process that carries frames between two sites with latency, jitter, loss and a bandwidth.

It outlives the daemon that started it: commands are datagrams to a socket whose name follows from the link's, and a
socket that refuses them means a dead process. Invariant: a link has at most one process, as a namespace can have only
one TAP of a name; `end` ends it, or the removal of its namespace.
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
from wherry.fabric.run_program import readable
from wherry.model.spec.fabric import DirectionSpec

TIMEOUT = 5.0
"""Seconds within which it must start, answer or end; each takes milliseconds."""


class LinkEmulator:
    """The process at one socket, whether it runs or not."""

    def __init__(self, control: Path, name: str) -> None:
        self._control = control
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, ends: list[tuple[str, str]], mtu: int, rules: tuple[DirectionSpec, DirectionSpec]) -> None:
        """Starts it between two ends: each the path of a namespace, and the name of the TAP to make there."""
        self._control.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + TIMEOUT
        words = [str(native_program("wherry-link")), "--control", str(self._control), "--mtu", str(mtu)]
        words += [word for netns, tap in ends for word in ("--tap", f"{netns}:{tap}")]
        while True:
            reason = self._spawn([*words, "--set", _text(rules)])
            if reason is None:
                return
            if time.monotonic() > deadline:  # the kernel removes the TAP of a dead process only after a while
                raise Failed(Code.FAILED, f"the emulator of the link {self._name} did not start", reason, "make setup")
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

    def set(self, rules: tuple[DirectionSpec, DirectionSpec]) -> None:
        """Changes the rules, from the next frame on."""
        try:
            self._ask(f"set {_text(rules)}", TIMEOUT)
        except OSError as error:
            what = f"the emulator of the link {self._name} does not answer"
            raise Failed(Code.FAILED, what, str(error), "wherry fabric up FILE") from None

    def counters(self) -> dict[str, Any] | None:
        """Its counters (see native/link/main.c); None when it does not answer."""
        try:
            return self._ask("show", TIMEOUT)
        except OSError:
            return None

    def end(self) -> None:
        """Ends the process, if it runs."""
        with contextlib.suppress(OSError):
            self._ask("end", TIMEOUT)
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:  # it hangs, and would keep its TAPs
                process.kill()
                process.wait()
        self._control.unlink(missing_ok=True)

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
            if self._process is not None:  # its predecessor, whose socket or TAPs are gone
                self._process.kill()
                self._process.wait()
            self._process = process
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
