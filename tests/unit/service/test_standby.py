"""Whom a standby ends, and whom it leaves alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rest_service import Here

import waiting
from postgresql_server import Server
from wherry.base.errors import Refused
from wherry.client.transport import send
from wherry.service import standby
from wherry.service.daemon import listening
from wherry.service.database_choice import note_of, open_store
from wherry.service.instance_lock import InstanceLock, holder_text
from wherry.service.standby import Standby, saying_who_leads
from wherry.store import lease as leases
from wherry.store.lease import Lease

HOLD = """
import fcntl, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(file, fcntl.LOCK_EX)
os.pwrite(file, b"%d\\n" % os.getpid(), 0)
print("held", flush=True)
time.sleep(600)
"""


@contextmanager
def leader(place: Here) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the instance's lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, place.run / "lock"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def place(tmp_path: Path) -> Here:
    place = Here("one", tmp_path)
    place.run.mkdir()
    place.state.mkdir()
    return place


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_EVERY", 0.01)


@pytest.fixture
def lease(place: Here, postgresql: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lease]:
    """The lease of the instance, which this process holds, and which has expired."""
    monkeypatch.setattr(leases, "LEASE_SECONDS", -1.0)
    store, lease = open_store(place, postgresql.new_schema())
    assert lease
    yield lease
    store.close()


def own(lease: Lease, place: Here, process: subprocess.Popen[str]) -> None:
    """Has the process hold the lease."""
    note = note_of(place)
    assert note and lease.take(note.id, holder_text(process.pid), certain=True)


def test_a_daemon_that_has_the_lock_and_not_yet_the_lease_is_left_alone(place: Here, lease: Lease) -> None:
    """It begins: the lease, which expired long ago, names the one before it."""
    with leader(place) as process:
        before = lease.read()
        Standby(place, "")._look()
        assert process.poll() is None and lease.read() == before and not before.valid


def test_a_daemon_that_renews_its_lease_is_left_alone(
    place: Here, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASE_SECONDS", 60)
    with leader(place) as process:
        own(lease, place, process)
        Standby(place, "")._look()
        assert process.poll() is None and lease.read().holder == holder_text(process.pid)


@pytest.mark.parametrize("stopped", [True, False])
def test_a_daemon_whose_lease_expired_is_ended(place: Here, lease: Lease, stopped: bool) -> None:
    with leader(place) as process:
        own(lease, place, process)
        if stopped:
            process.send_signal(signal.SIGSTOP)
        lock = Standby(place, "").wait()
        assert lock and process.wait(60) == -signal.SIGKILL
        assert lease.read().epoch == 3 and lease.read().holder == holder_text(os.getpid())
        with pytest.raises(Refused):
            InstanceLock(place)
        lock.release()


def test_a_standby_of_sqlite_waits_for_the_lock(place: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(place, "")[0].close()
    with leader(place) as process:
        got, looks, look = list[InstanceLock | None](), list[None](), Standby._look
        monkeypatch.setattr(Standby, "_look", lambda one: looks.append(look(one)))
        thread = threading.Thread(target=lambda: got.append(Standby(place, "").wait()))
        thread.start()
        waiting.until(lambda: len(looks) >= 3, "looks")
        assert not got and process.poll() is None
        process.kill()
        thread.join()
    assert got[0] is not None
    got[0].release()


def test_it_ends_when_the_instance_is_removed(place: Here) -> None:
    with leader(place):
        place.ending.touch()
        assert Standby(place, "").wait() is None


def test_it_says_who_leads(place: Here) -> None:
    with leader(place) as process:
        path = place.standby_socket
        with saying_who_leads(place, listening(path, None), path):
            for method, target in (("GET", "/v1/clusters"), ("POST", "/v1/moves"), ("DELETE", "/v1/clusters/a")):
                answer = send(str(path), method, target, None, {})
                problem = json.loads(answer.body)
                assert answer.status == 503 and f"process {process.pid} leads" in problem["why"], target
            assert json.loads(send(str(path), "GET", "/healthz", None, {}).body) == {"status": "standby"}
        assert not path.exists()
