"""Stops the nodes of a host whose daemon has had no message of it for long, with `lease` in the fabric file.

    agent    writes how long nodes may run, at each ping that comes back ---> run/lease
    guard    a process that outlives agents; when the time is over: freezes the host's cgroup, takes the tunnels of
             clusters down, and writes that they are stopped
    agent    the next one of a daemon that has not declared the host lost: writes a new time, and has all of it continue

Nodes that a move has frozen stay frozen: theirs is a cgroup below. Invariant: a process that changes the file, and
the state that it describes, holds its lock; so nothing is stopped that has just been prolonged.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wherry.agent.lease import clock
from wherry.base.errors import WherryError
from wherry.base.paths import Instance
from wherry.fabric import named_netns, netns_links
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.netns_links import NetnsLinks
from wherry.fabric.netns_names import NEAR_TUNNEL, TUNNEL

FILES = "lease", "guard"
"""Its files in the instance's directory."""
WORD = "guard"
"""The first argument of an agent that is a guard."""
_STAND = "stand"
_POLL_INTERVAL = 1.0
"""Seconds between two looks."""


@dataclass(frozen=True)
class GuardedNodes:
    """The nodes of the host `name`, whose time is in a file; `cgroup` has all of them."""

    instance: Instance
    name: str
    cgroup: str

    def prolong(self, until: float) -> bool:
        """They may run until then, if they run. False when they stand."""
        with self._file() as (text, write):
            if text != _STAND:
                write(repr(until))
            return text != _STAND

    def go_on(self, until: float) -> bool:
        """They may run until then, and run. True when they were stopped."""
        with self._file() as (text, write):
            if text == _STAND:
                self._inside(lambda ip, tunnel: ip.up(tunnel))
                Cgroup(self.cgroup).thaw()
            write(repr(until))
            return text == _STAND

    def stop_in_time(self) -> None:
        """Stops them when their time is over. Failed when one still runs."""
        with self._file() as (text, write):
            if text and text != _STAND and clock() >= float(text):
                if Cgroup(self.cgroup).exists():
                    Cgroup(self.cgroup).freeze()
                self._inside(lambda ip, tunnel: ip.down(tunnel))
                write(_STAND)

    def known(self) -> bool:
        """Whether they have, or had, a time."""
        return (self.instance.run / FILES[0]).exists()

    @property
    def netns(self) -> str:
        """Name of the host's namespace, which is there as long as the instance has anything at the host."""
        return f"{self.instance.prefix}-{self.name}"

    def _inside(self, act: Callable[[NetnsLinks, str], None]) -> None:
        def each(ip: NetnsLinks) -> None:
            for tunnel in (*ip.names(TUNNEL), *ip.names(NEAR_TUNNEL)):
                act(ip, tunnel)

        if named_netns.exists(self.netns):
            netns_links.inside(named_netns.path(self.netns), each)

    @contextlib.contextmanager
    def _file(self) -> Iterator[tuple[str, Callable[[str], None]]]:
        """The file's text, and a function that writes another one."""
        self.instance.run.mkdir(parents=True, exist_ok=True)
        path = self.instance.run / FILES[0]
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)

            def write(text: str) -> None:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, text.encode(), 0)

            yield os.pread(descriptor, 100, 0).decode(errors="replace"), write
        finally:
            os.close(descriptor)


def start(nodes: GuardedNodes) -> None:
    """Starts the guard, unless there is one."""
    lock = _lock(nodes)
    if lock is None:
        return
    os.close(lock)
    words = [sys.executable, *sys.orig_argv[1:], WORD, nodes.instance.name, nodes.name, nodes.cgroup]
    subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it outlives the agent, and sshd's session
        cwd="/",
    )


def run(nodes: GuardedNodes) -> None:
    """Guards until the instance has nothing at the host."""
    lock = _lock(nodes)
    while lock is not None and named_netns.exists(nodes.netns):
        with contextlib.suppress(WherryError, OSError, ValueError):  # it is tried again
            nodes.stop_in_time()
        time.sleep(_POLL_INTERVAL)


def _lock(nodes: GuardedNodes) -> int | None:
    """The descriptor that makes its process the guard, until that ends; None where there is one."""
    lock = os.open(nodes.instance.run / FILES[1], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
