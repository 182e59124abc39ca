"""The daemon as a process: one per instance, found by its lock, outlived by the state, removed by the sweep."""

from __future__ import annotations

import grp
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import waiting
from names import own_name
from wherry.base.errors import LostContact, Refused
from wherry.base.paths import Instance
from wherry.client import Client, daemon_process

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts the daemon")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state"))
    place = Instance(own_name("tcli"))
    monkeypatch.setenv("WHERRY_INSTANCE", place.name)
    yield place
    daemon_process.stop(place)
    daemon_process.sweep()
    assert not place.run.exists() and not place.state.exists()


def test_a_command_starts_it_once(place: Instance) -> None:
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            with Client(place) as client:
                assert client.clusters() == []
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    pid = daemon_process.holder(place)
    assert pid and daemon_process.stop(place) == pid
    assert daemon_process.holder(place) is None and not place.socket.exists() and daemon_process.stop(place) is None
    with pytest.raises(LostContact):
        Client(place, start=False)


def test_a_killed_daemon_is_replaced_under_a_client(place: Instance) -> None:
    with Client(place) as client:
        assert client.events() == []
        first = daemon_process.holder(place)
        assert first
        os.kill(first, signal.SIGKILL)
        waiting.until(lambda: daemon_process.holder(place) != first, "the end of the daemon")
        assert client.clusters() == []
        assert daemon_process.holder(place) not in (None, first)


def test_a_second_daemon_is_refused(place: Instance) -> None:
    daemon_process.start(place)
    second = [sys.executable, "-m", "wherry.service.daemon"]
    done = subprocess.run(second, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5 and "wherry daemon stop" in done.stdout
    with pytest.raises(Refused):
        daemon_process.sweep()


def test_a_group_that_came_too_late_is_refused(place: Instance) -> None:
    """Two start the daemon at once, and the first has no group or another one."""
    group = grp.getgrgid(1).gr_name
    daemon_process.start(place, group)
    daemon_process.start(place, group)
    with pytest.raises(Refused, match="its group cannot be chosen"):
        daemon_process.start(place, grp.getgrgid(2).gr_name)
    daemon_process.stop(place)
    daemon_process.start(place)
    with pytest.raises(Refused, match="its group cannot be chosen"):
        daemon_process.start(place, grp.getgrgid(0).gr_name)


def test_a_daemon_that_cannot_start_shows_its_log(place: Instance) -> None:
    place.state.mkdir(parents=True)
    (place.state / "wherry.db").mkdir()
    with pytest.raises(LostContact) as caught:
        daemon_process.start(place)
    assert "wherry.db" in str(caught.value) or "cannot go on" in str(caught.value)


def test_the_doctor_needs_no_daemon(place: Instance) -> None:
    findings = daemon_process.examine()
    assert {"root", "kernel", "cgroups", "criu", "mpi"} <= {finding["name"] for finding in findings}
    assert all(finding["remedy"] for finding in findings if finding["health"] == "missing")
    assert daemon_process.holder(place) is None
