"""A client waits for a daemon that starts, as long as it lives; a daemon that died is noticed at once."""

from __future__ import annotations

import grp
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from rest_service import Here

import waiting
from names import own_name
from wherry.base.errors import Code, LostContact, Refused
from wherry.base.paths import Instance
from wherry.client import Client, daemon_process
from wherry.model.owner import Owner
from wherry.node.as_user import as_user

HOUR = 3600.0
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts the daemon")


@pytest.fixture
def place(tmp_path: Path) -> Here:
    place = Here("awaited", tmp_path)
    place.run.mkdir()
    return place


class Clock:
    """Sleeps take an hour and no time; `steps` are taken one at each."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.now, self.steps = 0.0, list(steps)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _seconds: float) -> None:
        self.now += HOUR
        assert self.steps, "it waits for a step that will not come"
        self.steps.pop(0)()


@contextmanager
def holding(place: Here, name: str = "lock") -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a lock as a daemon has it."""
    lock = place.run / name
    with subprocess.Popen(["flock", "--no-fork", lock, "sleep", "600"]) as process:
        try:
            lock.write_text(str(process.pid))
            waiting.until(lambda: daemon_process.holder(place, name), "the lock")
            yield process
        finally:
            process.kill()


def no_daemon(*_: str) -> subprocess.CompletedProcess[str]:
    raise AssertionError("it starts another daemon")


def started(*_: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], 0, "", "")


@pytest.mark.parametrize("uid", [0, 1000])
def test_a_daemon_that_takes_hours_to_recover_is_waited_for(
    place: Here, uid: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any user may have started it; a user who may not start one waits, too. A terminal shows the wait."""
    with holding(place) as process, socket.socket(socket.AF_UNIX) as listener:

        def listen() -> None:
            listener.bind(str(place.socket))
            listener.listen()

        clock = Clock(bool, bool, listen)
        monkeypatch.setattr(daemon_process, "time", clock)
        monkeypatch.setattr(daemon_process, "_wherryd", no_daemon)
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        daemon_process.start(place)
        assert clock.now == 3 * HOUR
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 2 and all(f"process {process.pid}" in line for line in said), said


@pytest.mark.parametrize("resume", [False, True])
def test_a_daemon_that_died_is_noticed_at_once(place: Here, resume: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody has seen it with its lock, too."""
    place.state.mkdir()
    (place.state / "wherry.db").touch()
    monkeypatch.setattr(daemon_process, "time", Clock())
    monkeypatch.setattr(daemon_process, "_wherryd", started)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(LostContact) as caught:
        daemon_process.start(place, resume=resume)
    assert caught.value.code == Code.UNREACHABLE and caught.value.what == "the daemon did not start"


def test_the_next_daemon_is_started_when_the_one_that_recovered_dies(
    place: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holding(place) as process, socket.socket(socket.AF_UNIX) as listener:

        def end() -> None:
            process.kill()
            process.wait()

        def start(*_: str) -> subprocess.CompletedProcess[str]:
            listener.bind(str(place.socket))
            listener.listen()
            return started()

        monkeypatch.setattr(daemon_process, "time", Clock(end))
        monkeypatch.setattr(daemon_process, "_wherryd", start)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        daemon_process.start(place)


def test_a_client_that_waits_is_told_that_the_instance_was_removed_meanwhile(
    place: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.state.mkdir()
    (place.state / "wherry.db").touch()
    with holding(place) as process:

        def remove() -> None:
            (place.state / "wherry.db").unlink()
            process.kill()
            process.wait()

        monkeypatch.setattr(daemon_process, "time", Clock(remove))
        monkeypatch.setattr(daemon_process, "_wherryd", no_daemon)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        with pytest.raises(Refused) as caught:
            daemon_process.start(place, resume=True)
        assert caught.value.code == Code.TAKEN_DOWN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as another user")
@pytest.mark.parametrize("name", ["lock", "standby"])
def test_a_user_who_may_not_read_the_lock_sees_who_holds_it(name: str) -> None:
    user = Owner(uid=65534, gid=65534, home="/", cwd="/")
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="wherry-") as top:
        place = Here("awaited", Path(top))
        place.run.mkdir()
        for directory in (place.top, place.run):
            directory.chmod(0o711)
        with holding(place, name) as process:
            (place.run / name).chmod(0o600)
            assert as_user(user, lambda: daemon_process.holder(place, name)) == process.pid
        assert as_user(user, lambda: daemon_process.holder(place, name)) is None


@root_only
def test_a_client_is_answered_by_a_daemon_that_stood_while_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops when it has its lock, and continues when the client has waited for hours."""
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state"))
    served = Instance(own_name("twai"))
    monkeypatch.setenv("WHERRY_INSTANCE", served.name)
    serve, time = daemon_process._wherryd, daemon_process.time

    def stopped(*words: str, place: Instance | None = None) -> subprocess.CompletedProcess[str]:
        done = serve(*words, place=place)
        if words[0] == "serve" and (pid := daemon_process.holder(served)):
            os.kill(pid, signal.SIGSTOP)
            if served.socket.exists():  # it was quicker than this test
                os.kill(pid, signal.SIGCONT)
        return done

    def go_on() -> None:
        pid = daemon_process.holder(served)
        assert pid
        os.kill(pid, signal.SIGCONT)
        monkeypatch.setattr(daemon_process, "time", SimpleNamespace(monotonic=lambda: 4 * HOUR, sleep=time.sleep))

    monkeypatch.setattr(daemon_process, "_wherryd", stopped)
    monkeypatch.setattr(daemon_process, "time", Clock(bool, bool, go_on))
    try:
        with Client(served) as client, waiting.no_hang():
            assert client.clusters() == []
    finally:
        monkeypatch.setattr(daemon_process, "time", time)
        daemon_process.stop(served)
        daemon_process.sweep()


# The daemon as a process: one per instance, found by its lock, outlived by the state, removed by the sweep.


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state"))
    instance = Instance(own_name("tcli"))
    monkeypatch.setenv("WHERRY_INSTANCE", instance.name)
    yield instance
    daemon_process.stop(instance)
    daemon_process.sweep()
    assert not instance.run.exists() and not instance.state.exists()


@root_only
def test_a_command_starts_it_once(instance: Instance) -> None:
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            with Client(instance) as client:
                assert client.clusters() == []
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    pid = daemon_process.holder(instance)
    assert pid and daemon_process.stop(instance) == pid
    assert (
        daemon_process.holder(instance) is None
        and not instance.socket.exists()
        and daemon_process.stop(instance) is None
    )
    with pytest.raises(LostContact):
        Client(instance, start=False)


@root_only
def test_a_killed_daemon_is_replaced_under_a_client(instance: Instance) -> None:
    with Client(instance) as client:
        assert client.events() == []
        first = daemon_process.holder(instance)
        assert first
        os.kill(first, signal.SIGKILL)
        waiting.until(lambda: daemon_process.holder(instance) != first, "the end of the daemon")
        assert client.clusters() == []
        assert daemon_process.holder(instance) not in (None, first)


@root_only
def test_a_second_daemon_is_refused(instance: Instance) -> None:
    daemon_process.start(instance)
    second = [sys.executable, "-m", "wherry.service.daemon"]
    done = subprocess.run(second, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5 and "wherry daemon stop" in done.stdout
    with pytest.raises(Refused):
        daemon_process.sweep()


@root_only
def test_a_group_that_came_too_late_is_refused(instance: Instance) -> None:
    """Two start the daemon at once, and the first has no group or another one."""
    group = grp.getgrgid(1).gr_name
    daemon_process.start(instance, group)
    daemon_process.start(instance, group)
    with pytest.raises(Refused, match="its group cannot be chosen"):
        daemon_process.start(instance, grp.getgrgid(2).gr_name)
    daemon_process.stop(instance)
    daemon_process.start(instance)
    with pytest.raises(Refused, match="its group cannot be chosen"):
        daemon_process.start(instance, grp.getgrgid(0).gr_name)


@root_only
def test_a_daemon_that_cannot_start_shows_its_log(instance: Instance) -> None:
    instance.state.mkdir(parents=True)
    (instance.state / "wherry.db").mkdir()
    with pytest.raises(LostContact) as caught:
        daemon_process.start(instance)
    assert "wherry.db" in str(caught.value) or "cannot continue" in str(caught.value)


@root_only
def test_the_doctor_needs_no_daemon(instance: Instance) -> None:
    findings = daemon_process.examine()
    assert {"root", "kernel", "cgroups", "criu", "mpi"} <= {finding["name"] for finding in findings}
    assert all(finding["remedy"] for finding in findings if finding["health"] == "missing")
    assert daemon_process.holder(instance) is None


# A daemon that cannot start, as the disk of its state is full, reports that although its log cannot.


@pytest.fixture
def instance_on_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "wherry", str(state)], check=True)
    monkeypatch.setenv("WHERRY_STATE", str(state))
    instance_on_full_disk = Instance(own_name("tful"))
    monkeypatch.setenv("WHERRY_INSTANCE", instance_on_full_disk.name)
    try:
        yield instance_on_full_disk
        daemon_process.stop(instance_on_full_disk)
        daemon_process.sweep()
    finally:
        subprocess.run(["umount", str(state)], check=True)


@root_only
def test_it_says_which_disk_is_full(instance_on_full_disk: Instance) -> None:
    with (
        open(instance_on_full_disk.state.parent / "fill", "wb", buffering=0) as fill,
        pytest.raises(OSError, match="No space"),
    ):
        while True:
            fill.write(bytes(4096))
    with pytest.raises(LostContact) as refused:
        daemon_process.start(instance_on_full_disk)
    assert "did not start" in refused.value.what and f"{instance_on_full_disk.state} is full" in refused.value.why
    (instance_on_full_disk.state.parent / "fill").unlink()
    daemon_process.start(instance_on_full_disk)
