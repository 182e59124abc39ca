"""Names that `make test` may take for its own, and remove."""

from __future__ import annotations

from pathlib import Path

import pytest

import killed_runs


def test_names_of_this_run_alone_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killed_runs, "NAMES", tmp_path)
    monkeypatch.setattr(killed_runs.os, "geteuid", lambda: 0)
    for run, name in (("1 pid:[4] 10", "ours"), ("2 pid:[4] 10", "others")):
        monkeypatch.setenv(killed_runs.VARIABLE, run)
        killed_runs.note(name)
    monkeypatch.setenv(killed_runs.VARIABLE, "1 pid:[4] 10")
    assert killed_runs.names() == {"ours"}
