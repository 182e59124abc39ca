"""The daemon's socket as a unit of systemd: the socket stays while the daemon begins and ends, also by `down --all`."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from realworld import RealInstance, real_instance

from waiting import until

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="a daemon is root's")]
WHERRYD = Path(sys.executable).parent / "wherryd"
_WITH_SOCKET = 'export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'


class Keeper:
    """Is a systemd for a socket unit and its service: it listens, starts the service when somebody connects
    and none runs, and starts it again then when it has ended."""

    def __init__(self, world: RealInstance) -> None:
        self._world, self._over = world, threading.Event()
        self.started = 0
        path = world.instance.socket
        path.parent.mkdir(parents=True, exist_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind(str(path))
        self.socket.listen(128)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            if select.select([self.socket], [], [], 0.05)[0]:
                words = ["bash", "-c", f"exec 3<&{self.socket.fileno()}; {_WITH_SOCKET}", "sh", str(WHERRYD), "serve"]
                daemon = subprocess.Popen(words, env=self._world.environment, pass_fds=[self.socket.fileno()])
                self.started += 1
                daemon.wait()

    def end(self) -> None:
        self._over.set()
        while self._thread.is_alive():  # a daemon that is only starting has no lock by which it is found
            self._world("daemon", "stop")
            self._thread.join(0.1)
        self.socket.close()
        self._world.instance.socket.unlink(missing_ok=True)


@contextmanager
def keeper(world: RealInstance) -> Iterator[Keeper]:
    kept = Keeper(world)
    try:
        yield kept
    finally:
        kept.end()


@pytest.fixture
def world() -> Iterator[RealInstance]:
    with real_instance("tsk") as created:
        yield created


def pid(world: RealInstance) -> int:
    found: int = world.json("daemon", "status")["process"]
    return found


@pytest.mark.smoke
def test_the_daemon_begins_and_ends_beside_a_socket_that_stays(world: RealInstance) -> None:
    with keeper(world) as systemd:
        first = pid(world)  # the command connects, which starts the daemon
        assert systemd.started == 1
        assert world.json("daemon", "stop")["stopped"] == first
        os.kill(second := pid(world), signal.SIGKILL)
        assert second != first
        third = world.json("daemon", "start")["process"]
        assert third not in (first, second) and systemd.started == 3
        refused = world("daemon", "start", "--standby")
        assert refused.returncode == 5 and "systemctl disable" in refused.stderr, refused.stderr
        removed = world("down", "--all", "--yes")
        assert removed.returncode == 0, removed.stderr
        assert {path.name for path in world.instance.run.iterdir()} == {"wherryd.sock", "lock"}
        assert not world.instance.state.exists()
        assert pid(world) not in (first, second, third) and systemd.started == 4


def test_systemds_own_program_starts_it(world: RealInstance) -> None:
    program = shutil.which("systemd-socket-activate")
    if not program:
        pytest.skip("there is no systemd-socket-activate (package systemd)")
    world.instance.run.mkdir(parents=True, exist_ok=True)
    words = [program, f"--listen={world.instance.socket}", "--setenv=WHERRY_INSTANCE", str(WHERRYD), "serve"]
    activate = subprocess.Popen(words, env=world.environment, stderr=subprocess.DEVNULL)
    try:
        until(world.instance.socket.exists, "the socket of systemd-socket-activate")
        assert pid(world) == activate.pid
        assert world("daemon", "stop").returncode == 0
        assert activate.wait() == 0 and world.instance.socket.exists()  # as it is systemd's to remove
    finally:
        activate.kill()
        activate.wait()
        world.instance.socket.unlink(missing_ok=True)


def test_another_socket_is_refused(world: RealInstance, tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()
        words = ["bash", "-c", f"exec 3<&{other.fileno()}; {_WITH_SOCKET}", "sh", str(WHERRYD), "serve"]
        done = subprocess.run(
            words, env=world.environment, pass_fds=[other.fileno()], capture_output=True, text=True, check=False
        )
    assert done.returncode == 2, done.stderr
    error = json.loads(done.stdout)["error"]
    assert str(path) in error["why"] and error["next"] == f"ListenStream={world.instance.socket} in the socket unit"
