"""Permissions to use AMX are asked for only where the machine has it."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from wherry.base.errors import Failed
from wherry.node.container import amx, movable

TILES, OTHERS = 1 << 18, 0x2E7


def answering(monkeypatch: pytest.MonkeyPatch, mask: int, answer: str | Exception) -> list[list[str]]:
    """The words with which the program was started that has this answer, on a machine with these features."""
    started = list[list[str]]()

    def run(words: list[str], **_: object) -> SimpleNamespace:
        started.append(words)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(stdout=answer)

    monkeypatch.setattr(amx, "supported", lambda: mask)
    monkeypatch.setattr(amx, "native_program", lambda name: f"/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    return started


def test_nobody_is_asked_where_there_is_no_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    started = answering(monkeypatch, OTHERS, "permitted 1")
    assert not list(amx.users([1, 2])) and not started


def test_those_that_have_the_permission_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    started = answering(monkeypatch, TILES | OTHERS, "permitted 2\nunknown 3 none of its threads stops\n")
    assert not list(amx.users([])) and not started
    (two, may), (three, unknown) = amx.users([1, 2, 3])
    assert started == [["/wherry-pager", "permitted", "18", "1", "2", "3"]]
    assert (two, three) == (2, 3) and unknown.endswith("does not carry: none of its threads stops")
    assert "may use AMX" in may and "ONEDNN_MAX_CPU_ISA=" in may


def test_a_program_that_fails_leaves_nothing_unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, TILES, subprocess.TimeoutExpired("wherry-pager", 60.0))
    with pytest.raises(Failed, match="could not be asked whether they use AMX"):
        movable.require_no_amx([1])
