"""A benchmark removes the instance that it made and no other; suggested root commands name the instance."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wherry.base.errors import Refused
from wherry.base.paths import Instance, as_root
from wherry.client import daemon_process
from wherry.lab.bench.session import temporary_instance
from wherry.lab.sole_use import sole_use


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Records the calls that stop and remove an instance instead of making them."""
    calls_made: list[str] = []
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(daemon_process, "stop", lambda instance: calls_made.append(f"stop {instance.name}"))
    monkeypatch.setattr(daemon_process, "sweep", lambda: calls_made.append(f"sweep {os.environ['WHERRY_INSTANCE']}"))
    monkeypatch.setattr("wherry.lab.sole_use._LOCKS", tmp_path)
    monkeypatch.chdir(tmp_path)
    return calls_made


def test_temporary_instance_is_removed_at_the_end(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_INSTANCE", "tbenches")
    with temporary_instance("demo"):
        assert calls == []
    assert calls == ["stop tbenches", "sweep tbenches"]


def test_instance_in_use_is_refused(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_INSTANCE", "tbenches")
    Instance("tbenches").state.mkdir(parents=True)
    with pytest.raises(Refused, match="tbenches is in use"), temporary_instance("demo"):
        pass
    assert calls == []


def test_leftover_of_the_own_instance_is_accepted(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_INSTANCE", "tbenches")
    Instance("tbenches").state.mkdir(parents=True)
    with temporary_instance("tbenches", keep=True):
        pass
    assert calls == []


def test_second_measurement_leaves_the_instance_of_the_first(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_INSTANCE", "tbenches")
    with temporary_instance("tbenches"):
        with pytest.raises(Refused, match="another study, benchmark or demo"), temporary_instance("tbenches"):
            pass
        assert calls == []
    assert calls == ["stop tbenches", "sweep tbenches"]


def test_sudo_command_names_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WHERRY_")]:
        monkeypatch.delenv(name)
    assert as_root(["down", "--all"]) == "sudo wherry down --all"
    monkeypatch.setenv("WHERRY_STATE", "/srv/a b")
    monkeypatch.setenv("WHERRY_INSTANCE", "lab")
    assert as_root(["down", "--all"]) == "sudo env WHERRY_INSTANCE=lab 'WHERRY_STATE=/srv/a b' wherry down --all"


# A second measurement in an instance is refused.


_OPENER = """
import fcntl, sys
with open(sys.argv[1], "w") as lock:
    print("opened", flush=True)
    sys.stdin.readline()
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked", flush=True)
    sys.stdin.readline()
"""


def test_it_excludes_who_opened_the_lock_file_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process opens the lock file before the first measurement ends, and locks it afterwards."""
    monkeypatch.setattr("wherry.lab.sole_use._LOCKS", tmp_path)
    with sole_use():
        (path,) = tmp_path.iterdir()
        command = [sys.executable, "-c", _OPENER, str(path)]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert other.stdout and other.stdin and other.stdout.readline() == "opened\n"
    with other:
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(Refused, match="another study, benchmark or demo"), sole_use():
            pass
        other.stdin.close()
