"""A bench takes down the instance that it made, and no other; what is to be typed as root names the instance."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wherry.base.errors import Refused
from wherry.base.paths import Instance, as_root
from wherry.client import daemon_process
from wherry.lab.bench.session import own_instance


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was stopped and swept, which here nothing is."""
    said: list[str] = []
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(daemon_process, "stop", lambda instance: said.append(f"stop {instance.name}"))
    monkeypatch.setattr(daemon_process, "sweep", lambda: said.append(f"sweep {os.environ['WHERRY_INSTANCE']}"))
    monkeypatch.chdir(tmp_path)
    return said


def test_its_own_instance_is_gone_afterwards(ended: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_INSTANCE", "tbenches")
    with own_instance("demo"):
        assert ended == []
    assert ended == ["stop tbenches", "sweep tbenches"]


def test_one_that_is_in_use_is_left_alone(ended: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_INSTANCE", "tbenches")
    Instance("tbenches").state.mkdir(parents=True)
    with pytest.raises(Refused, match="tbenches is in use"), own_instance("demo"):
        pass
    assert ended == []


def test_what_a_run_before_left_in_its_own_instance_is_no_reason(
    ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERRY_INSTANCE", "tbenches")
    Instance("tbenches").state.mkdir(parents=True)
    with own_instance("tbenches", keep=True):
        pass
    assert ended == []


def test_sudo_is_told_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WHERRY_")]:
        monkeypatch.delenv(name)
    assert as_root(["down", "--all"]) == "sudo wherry down --all"
    monkeypatch.setenv("WHERRY_STATE", "/srv/a b")
    monkeypatch.setenv("WHERRY_INSTANCE", "lab")
    assert as_root(["down", "--all"]) == "sudo env WHERRY_INSTANCE=lab 'WHERRY_STATE=/srv/a b' wherry down --all"
