"""The process of the daemon: the signals that end it, and the lock that only one has."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rest_service import Here

from wherry.base.errors import Refused
from wherry.client import daemon_process, identity
from wherry.model.owner import Owner
from wherry.service import instance_lock
from wherry.service.instance_lock import InstanceLock


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_during_the_recovery_is_kept(tmp_path: Path, name: str) -> None:
    program = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from pathlib import Path
        from rest_service import Here
        from wherry.service import context, daemon

        def recover(self, resume):
            os.kill(os.getpid(), signal.{name})

        context.ServiceContext.recover = recover
        place = Here("test", Path({str(tmp_path)!r}))
        place.run.mkdir()
        daemon._run(place, None)
        assert not place.socket.exists()
        print("ended")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "ended\n", done.stderr


# One daemon per instance: the lock's file may be removed by a purge, and is found without its process id.


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Here]:
    yield Here("lock", tmp_path)


def test_a_lock_is_never_held_on_a_removed_file(place: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """`down --all` removes the file that it holds, while a daemon waits for it: a third would lock a new file."""
    waits, released = threading.Event(), threading.Event()

    def pause(_seconds: float) -> None:
        waits.set()
        released.wait()

    monkeypatch.setattr(instance_lock, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=pause))
    purge, daemons = InstanceLock(place), list[InstanceLock]()
    daemon = threading.Thread(target=lambda: daemons.append(InstanceLock(place)), daemon=True)
    daemon.start()
    waits.wait()
    (place.run / "lock").unlink()
    place.run.rmdir()
    purge.release()
    released.set()
    daemon.join()
    assert len(daemons) == 1 and daemon_process.holder(place) == os.getpid()
    with pytest.raises(Refused):
        InstanceLock(place, patience=0.0)
    daemons[0].release()


def test_a_daemon_that_just_took_the_lock_is_seen(place: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def pause(_seconds: float) -> None:
        (place.run / "lock").write_text("4242\n")

    monkeypatch.setattr(daemon_process, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=pause))
    place.run.mkdir()
    with open(place.run / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert daemon_process.holder(place) == 4242


def test_a_daemon_with_a_full_backlog_answers(place: Here) -> None:
    place.run.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.socket))
        listener.listen(0)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            try:
                client.connect(str(place.socket))
            except BlockingIOError:
                break
        else:
            pytest.fail("the backlog is not full")
        assert daemon_process.answers(place)
        for client in clients:
            client.close()


def test_a_user_without_an_entry_has_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = identity.environment(Owner(uid=4242424, gid=4242424, home="/", cwd="/"))
    assert (found["USER"], found["HOME"]) == ("4242424", "/")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", "4242424")
    monkeypatch.setenv("SUDO_GID", "what")
    assert identity.owner().uid == 0
