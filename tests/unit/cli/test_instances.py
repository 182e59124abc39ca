"""`wherry down --all --instances`: its search, question and removal. No test looks at the machine's own instances."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import wherry.cli.instances
from wherry.base import paths
from wherry.base.errors import Code, Failed
from wherry.base.paths import Instance
from wherry.cli import cluster
from wherry.cli.main import _run
from wherry.client import daemon_process


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three instances; their removals are written down instead of made."""
    calls: list[str] = []

    def sweep(place: Instance) -> dict[str, list[str]]:
        if place.name == "stuck":
            raise Failed(Code.PARTLY_DONE, "instance stuck is removed in part")
        calls.append(place.name)
        return {"directories": [place.name]}

    monkeypatch.setenv("WHERRY_INSTANCE", "mine")
    monkeypatch.setattr(
        wherry.cli.instances, "instances", lambda: [Instance(name) for name in ("mine", "study", "tbench")]
    )
    monkeypatch.setattr(daemon_process, "stop", lambda place: None)
    monkeypatch.setattr(daemon_process, "forbid_resuming", lambda place: None)
    monkeypatch.setattr(daemon_process, "sweep", sweep)
    return calls


def test_scripts_say_yes(removed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["down", "--all", "--instances"]) == 5 and not removed
    error = capsys.readouterr().err
    assert "study, tbench" in error and "next: wherry down --all --instances --yes" in error
    assert _run(["down", "--all", "--instances", "--yes", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["others"]) == {"study", "tbench"} and document["instance"] == "mine"
    assert removed == ["study", "tbench", "mine"]
    assert _run(["down", "--instances"]) == 2


@pytest.mark.parametrize(("typed", "code", "expected"), [("y\n", 0, 3), ("n\n", 130, 0), ("\n", 130, 0)])
def test_a_terminal_is_asked(
    removed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, code: int,
    expected: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: typed, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert _run(["down", "--all", "--instances"]) == code and len(removed) == expected
    out = capsys.readouterr().out
    assert "tbench" in out and "[y/N]" in out


def test_one_that_cannot_be_removed_keeps_none(
    removed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wherry.cli.instances, "instances", lambda: [Instance("stuck"), Instance("tbench")])
    assert _run(["down", "--all", "--instances", "--yes"]) == 6 and removed == ["tbench", "mine"]
    assert "instance stuck: " in capsys.readouterr().err


def test_they_are_found_by_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("tinst7x", "images", "criu-versions", "tinst-8"):
        (tmp_path / name).mkdir()
    (tmp_path / "tinstf").touch()
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    found = [place.name for place in paths.instances()]
    assert [name for name in found if name.startswith(("tinst", "images", "criu"))] == ["tinst7x"]


def test_another_instance_is_really_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the program that removes, whose environment names the instance."""
    if daemon_process.os.geteuid() != 0:
        pytest.skip("removing needs root")
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    monkeypatch.setenv("WHERRY_INSTANCE", "tinstown")
    other = Instance("tinstoth")
    other.state.mkdir()
    _, removed = cluster._stop_and_purge(other)
    assert removed["directories"] == [str(other.state)] and not other.state.exists()
