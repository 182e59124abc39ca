"""What the kernel tells of locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.node.container import file_locks


def test_locks_are_those_of_two_equal_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel leaves out lines of /proc/locks while others come and go."""
    held, other = "1: FLOCK  ADVISORY  WRITE 7 08:01:9 0 EOF", "2: FLOCK  ADVISORY  WRITE 8 08:01:7 0 EOF"
    readings = iter([f"{other}\n", f"{held}\n{other}\n", f"{held}\n{other}\n", ""])
    with monkeypatch.context() as changed:
        changed.setattr(Path, "read_text", lambda path: next(readings))
        assert [words[3] for words in file_locks._all_locks()] == ["7", "8"]
