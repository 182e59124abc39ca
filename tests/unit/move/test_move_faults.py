"""Faults that are injected into moves: how they are written, when they strike, and that users cannot have them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from wherry.base.errors import Code, Failed, Refused
from wherry.model.records import Phase
from wherry.move import faults
from wherry.move.faults import Fault, parse_fault

PHASES = "prepare, rounds, freeze, transfer, restore, commit, thaw, post-dump"


@pytest.fixture(autouse=True)
def _permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_FAULTS", "1")


def test_a_fault_is_a_phase_and_a_kind() -> None:
    assert parse_fault("restore:fail") == Fault("restore", "fail")
    assert parse_fault("commit:kill") == Fault("commit", "kill")
    assert parse_fault("rounds:pause:/a:b") == Fault("rounds", "pause", "/a:b")
    assert [parse_fault(f"{phase}:fail").phase for phase in PHASES.split(", ")] == PHASES.split(", ")


@pytest.mark.parametrize("value", [None, "0", ""])
def test_only_a_daemon_for_tests_takes_faults(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("WHERRY_FAULTS")
    else:
        monkeypatch.setenv("WHERRY_FAULTS", value)
    assert parse_fault(None) == parse_fault("") == Fault(), "without a fault there is no need of a permission"
    with pytest.raises(Refused) as caught:
        parse_fault("restore:fail")
    assert caught.value.to_dict() == {
        "code": Code.UNSUPPORTED,
        "what": "faults are for tests",
        "why": "the daemon runs without WHERRY_FAULTS=1",
        "next": "leave the fault out",
    }


@pytest.mark.parametrize(
    "text",
    ["restore", "restore:", ":fail", "lunch:fail", "restore:explode", "restore:pause", "restore:pause:x", "x:pause:/x",
     "restore:fail:2", "restore:kill:", "done:fail", "rolled-back:fail", "restore:fail:2:3"],
)  # fmt: skip
def test_what_is_no_fault_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_fault(text)
    assert caught.value.to_dict() == {
        "code": Code.USAGE,
        "what": f"{text!r} is not a fault",
        "why": f"PHASE:KIND; phases {PHASES}; kinds fail, kill, pause:FILE",
        "next": "restore:fail is one",
    }


def test_it_strikes_once_at_its_phase(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = list[tuple[object, ...]]()
    monkeypatch.setattr(os, "kill", lambda *args: calls.append(args))
    held = tmp_path / "held"
    kill, pause, fail = Fault("freeze", "kill"), Fault("freeze", "pause", str(held)), Fault("freeze", "fail")
    for fault in (kill, pause, fail, Fault()):
        fault.strike(Phase.ROUNDS)
    assert calls == [] and not held.exists()
    for _ in range(2):
        kill.strike(Phase.FREEZE)
        pause.strike(Phase.FREEZE, held.unlink)
    assert calls == [(os.getpid(), signal.SIGKILL)]
    with pytest.raises(Failed) as caught:
        fail.strike(Phase.FREEZE)
    assert caught.value.to_dict() == {
        "code": Code.FAILED,
        "what": "a fault was injected at freeze",
        "why": "WHERRY_FAULTS=1",
        "next": "",
    }
    fail.strike(Phase.FREEZE)
    assert len(calls) == 1


def test_a_pause_ends_when_its_file_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks, held = iter([lambda: None, lambda: None, (tmp_path / "held").unlink]), tmp_path / "held"
    monkeypatch.setattr(faults, "_LOOK", 0)
    Fault("freeze", "pause", str(held)).strike(Phase.FREEZE, lambda: next(looks)())
    assert list(looks) == [] and not held.exists()


def test_a_pause_ends_with_what_the_move_sees_meanwhile(tmp_path: Path) -> None:
    def look() -> None:
        raise Failed(Code.MOVE_FAILED, "a program of the move ended")

    with pytest.raises(Failed, match="a program of the move ended"):
        Fault("freeze", "pause", str(tmp_path / "held")).strike(Phase.FREEZE, look)
    assert not (tmp_path / "held").exists()


def test_a_pause_touches_no_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "held").write_text("a user's")
    with pytest.raises(FileExistsError):
        Fault("freeze", "pause", str(tmp_path / "held")).strike(Phase.FREEZE)
    assert (tmp_path / "held").read_text() == "a user's"
