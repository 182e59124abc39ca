"""A container that is moved by hand: `wherry-writer` in namespaces of its own, and its peer outside of them.

All files are on one tmpfs. The container comes back into the network namespace that it left, which keeps its address:
between two hosts its interface would have to be plugged, too. So by hand less is done than in a move.
Invariant: `close` removes everything that was made, whatever failed before; one container at a time in an instance.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed
from wherry.base.paths import Instance, native_program

PORT = 7411
PROGRAM = "wherry-writer"
LIMIT = 300.0
"""Seconds for one command, and for the writer to check its memory."""
SETTLE = 0.5
"""Seconds for which the program runs before a move, and after it."""
_ENDING = 10.0
"""Seconds for which programs that were ended are waited for."""
_HERE, _THERE = "10.0.0.1", "10.0.0.2"
"""Addresses of the peer and of the container, in namespaces that nobody else is in."""


@dataclass(frozen=True)
class Writing:
    """The writer's work: bytes of memory, bytes a second that it writes, and to how many of its bytes; whether they
    are random, or can be compressed; the file that its memory is, if it is one."""

    memory: int
    rate: float
    working_set: int
    random: bool = False
    file: str = ""

    def arguments(self, address: str) -> list[str]:
        """The writer's command line behind its path, with the peer's address."""
        numbers = (PORT, self.memory, f"{self.rate:.0f}", min(self.working_set, self.memory))
        return [
            "write",
            address,
            *map(str, numbers),
            *(["random"] if self.random else []),
            *([self.file] if self.file else []),
        ]


class ContainerByHand(ABC):
    """One container and its peer. Subclasses start and move it with their tool."""

    def __init__(self, instance: Instance, writing: Writing) -> None:
        self.directory = instance.run / "by-hand"
        self.cgroup = f"{instance.prefix}/by-hand"
        self.netns = f"{instance.prefix}-by-hand"
        self.argv = [f"/{PROGRAM}", *writing.arguments(_HERE)]
        self._peer_netns = f"{self.netns}-peer"
        self._peer: subprocess.Popen[bytes] | None = None

    def run(self) -> dict[str, Any]:
        """Starts the container, moves it, ends it, and returns results of writer and peer, seconds in all, bytes."""
        self._make_ground()
        self._start_peer()
        self.start()
        self._await_ready()
        time.sleep(SETTLE)
        began = time.monotonic()
        size = self.move()
        total = time.monotonic() - began
        time.sleep(SETTLE)
        return {**self._result(), "total": total, "mib": size / 2**20}

    def close(self) -> None:
        """Removes everything. Idempotent."""
        try:
            self.remove()
        finally:
            if self._peer is not None:
                self._peer.kill()
                self._peer.wait()
            for name in (self.netns, self._peer_netns):
                _quietly("ip", "netns", "delete", name)
            for place in _mounts_below(self.directory):
                _quietly("umount", "--lazy", place)
            shutil.rmtree(self.directory, ignore_errors=True)
            _remove_cgroups(self.cgroup)

    @abstractmethod
    def start(self) -> None:
        """Starts the container with `argv` in the network namespace `netns`."""

    @abstractmethod
    def move(self) -> int:
        """Moves it; returns the bytes that another host would be sent."""

    @abstractmethod
    def remove(self) -> None:
        """Ends the container and removes all that belongs to it, in any state."""

    def _make_ground(self) -> None:
        """The tmpfs, a root with nothing but the writer, and two network namespaces with a cable between them."""
        self.directory.mkdir(mode=0o700)
        execute(["mount", "-t", "tmpfs", "-o", "mode=0700,size=100%", "wherry", str(self.directory)])
        for name in ("proc", "dev", "sys", "etc", "run", "tmp"):
            (self.directory / "root" / name).mkdir(parents=True)
        shutil.copy(native_program(PROGRAM), self.directory / "root" / PROGRAM)
        for name in (self.netns, self._peer_netns):
            execute(["ip", "netns", "add", name])
            execute(["ip", "-n", name, "link", "set", "dev", "lo", "up"])
        cable = ["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.netns]
        execute(["ip", "-n", self._peer_netns, *cable])
        for name, address in ((self.netns, _THERE), (self._peer_netns, _HERE)):
            execute(["ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0"])
            execute(["ip", "-n", name, "link", "set", "dev", "eth0", "up"])

    def _start_peer(self) -> None:
        words = ["ip", "netns", "exec", self._peer_netns, str(native_program(PROGRAM)), "peer", _HERE, str(PORT)]
        with self._peer_output.open("wb") as output:
            self._peer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)

    @property
    def _peer_output(self) -> Path:
        return self.directory / "peer.out"

    def _await_ready(self) -> None:
        deadline = time.monotonic() + LIMIT
        while "ready" not in self._peer_output.read_text():
            if time.monotonic() > deadline or self._peer is None or self._peer.poll() is not None:
                raise Failed(Code.FAILED, "by hand: the writer did not begin", self._peer_output.read_text()[-300:])
            time.sleep(0.05)

    def _result(self) -> dict[str, Any]:
        assert self._peer is not None
        self._peer.communicate(timeout=LIMIT)
        return writer_result(self._peer_output.read_text())


def writer_result(output: str) -> dict[str, Any]:
    """The last output of the writer's peer. Raises Failed when a page or a message was not right."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise Failed(Code.FAILED, "the writer and its peer did not come to an end", output.strip()[-300:])
    result: dict[str, Any] = lines[-1]
    if result["wrong"] or result["lost"]:
        raise Failed(Code.FAILED, f"{result['wrong']} pages are wrong", f"{result['lost']} messages lost or doubled")
    return result


def working_criu() -> str:
    """Path of the CRIU that works here."""
    words = [sys.executable, "-P", "-m", "wherry.node.container.criu.probe"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise Failed(Code.FAILED, "by hand: no CRIU works here", (done.stderr or done.stdout).strip()[-300:])
    return str(json.loads(done.stdout)["path"])


def execute(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
    images: Path | None = None,
) -> None:
    """Runs a command. Raises Failed with the first error of CRIU's newest log below `images`, or else the last line
    that the command printed, or wrote to its `log`: then nothing is left open that a container could inherit."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if log else subprocess.PIPE,
        env=None if environment is None else {**os.environ, **environment},
        timeout=LIMIT,
        check=False,
    )
    if done.returncode:
        printed = log.read_text() if log and log.exists() else (done.stderr or b"").decode(errors="replace")
        lines = printed.strip().splitlines() or [f"exit code {done.returncode}"]
        why = (_criu_error(images) if images else "") or lines[-1]
        raise Failed(Code.FAILED, f"by hand: {os.path.basename(command[0])} failed", why[-300:])


def _criu_error(directory: Path) -> str:
    found = [path for path in directory.rglob("*.log") if path.name in ("dump.log", "restore.log")]
    for log in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
        for line in log.read_text(errors="replace").splitlines():
            if "Error" in line and "RLIMIT_NOFILE" not in line:
                return f"{log.name}: {line.strip()}"
    return ""


def _quietly(*command: str) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False)


def _mounts_below(directory: Path) -> list[str]:
    """Mounts at `directory` and below it, the last one first."""
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    decoded = [re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), place) for place in places]
    return [place for place in reversed(decoded) if Path(place).is_relative_to(directory)]


def _remove_cgroups(name: str) -> None:
    """Removes the cgroup and those in it, of each hierarchy, when the last processes have ended."""
    top, deadline = Path("/sys/fs/cgroup"), time.monotonic() + _ENDING
    groups = [group for group in (top / name, *top.glob(f"*/{name}")) if group.is_dir()]
    while groups and time.monotonic() < deadline:
        for group in groups:
            for path in sorted((path for path in (group, *group.rglob("*")) if path.is_dir()), reverse=True):
                with suppress(OSError):  # something still runs in it
                    path.rmdir()
        groups = [group for group in groups if group.is_dir()]
        time.sleep(0.02)


@contextmanager
def closed_at_the_end(container: ContainerByHand) -> Iterator[ContainerByHand]:
    """The container, removed when the block ends."""
    try:
        yield container
    finally:
        container.close()
