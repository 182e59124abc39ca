"""One `wherry-link`: the process that carries frames between two sites and makes them late, few and fewer.

It outlives the daemon that started it: commands are datagrams to a socket whose name follows from the link's, and an
address that refuses them means that it is dead. Invariant: there is one process for a link at most, because a TAP of a
name can be made once in a namespace; it ends with `end`, or with its namespace.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.model.spec.fabric import DirectionSpec

TIMEOUT = 5.0
"""Seconds for what takes milliseconds."""


class LinkEmulator:
    """The process at one socket, whether it runs or not."""

    def __init__(self, control: Path, name: str) -> None:
        self._control = control
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, ends: list[tuple[str, str]], mtu: int, rules: tuple[DirectionSpec, DirectionSpec]) -> None:
        """Starts it between two ends, each the path of a namespace and the name of the TAP that is made there."""
        self._control.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + TIMEOUT
        words = [str(native_program("wherry-link")), "--control", str(self._control), "--mtu", str(mtu)]
        words += [word for netns, tap in ends for word in ("--tap", f"{netns}:{tap}")]
        while True:
            reason = self._try([*words, "--set", _text(rules)])
            if reason is None:
                return
            if time.monotonic() > deadline:  # the kernel takes a while to take the TAP of a dead one away
                raise Failed(Code.FAILED, f"the emulator of the link {self._name} did not start", reason, "make setup")
            time.sleep(0.05)

    def alive(self) -> bool:
        """False when nobody listens at the socket. One that is too busy to answer lives."""
        try:
            self._ask("show", 1.0)
        except (FileNotFoundError, ConnectionError):
            return False
        except TimeoutError:
            return True
        return True

    def set(self, rules: tuple[DirectionSpec, DirectionSpec]) -> None:
        """New rules, from the next frame on."""
        try:
            self._ask(f"set {_text(rules)}", TIMEOUT)
        except OSError as error:
            raise Failed(
                Code.FAILED, f"the emulator of the link {self._name} does not answer", str(error), "wherry fabric up"
            ) from None

    def counters(self) -> dict[str, Any] | None:
        """What it has carried (see native/link/main.c); None when it does not answer."""
        try:
            return self._ask("show", TIMEOUT)
        except OSError:
            return None

    def end(self) -> None:
        """Ends it; also when it does not run."""
        with contextlib.suppress(OSError):
            self._ask("end", TIMEOUT)
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:  # it hangs, and would keep the TAPs for ever
                process.kill()
                process.wait()
        self._control.unlink(missing_ok=True)

    def _ask(self, line: str, timeout: float) -> dict[str, Any]:
        """Its answer. OSError when nobody is there, TimeoutError when it does not answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            asking.settimeout(timeout)
            asking.bind("")  # an address of the kernel's choice, for the answer
            asking.connect(str(self._control))
            asking.send(line.encode())
            answer: dict[str, Any] = json.loads(asking.recv(4096))
        if answer["event"] != "ok":
            raise Failed(Code.FAILED, f"the emulator of the link {self._name} refused: {line}", answer["error"])
        return answer

    def _try(self, words: list[str]) -> str | None:
        """None when it runs; else why not."""
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt of a daemon on a terminal is not meant for it
            cwd="/",
        )
        assert process.stdout is not None
        with process.stdout as said:
            ready = select.select([said], [], [], TIMEOUT)[0]
            line = said.readline() if ready else b""
        answer = {}
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
        if answer.get("event") == "ready":
            if self._process is not None:  # the one before it, whose socket or TAPs are gone
                self._process.kill()
                self._process.wait()
            self._process = process
            return None
        process.kill()
        process.wait()
        return str(answer.get("error", "it said nothing"))


def _text(rules: tuple[DirectionSpec, DirectionSpec]) -> str:
    """The rules as the program takes them: nanoseconds, bit/s, share; there and back."""
    return " ".join(
        f"{round((one.latency or 0) * 1e9)} {round((one.jitter or 0) * 1e9)} {one.bandwidth or 0} {one.loss or 0:.9f}"
        for one in rules
    )
