"""The kernel's list of locks."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from wherry.node.container import lock_table


def test_what_one_reading_leaves_out_another_has(monkeypatch: pytest.MonkeyPatch) -> None:
    held, other = "1: FLOCK  ADVISORY  WRITE 7 08:01:9 0 EOF", "2: FLOCK  ADVISORY  WRITE 8 08:01:7 0 EOF"
    many = "".join(f"{number + 3}: POSIX  ADVISORY  READ 9 08:01:{number + 10} 0 EOF\n" for number in range(60))
    readings = iter([many + line for line in (other, f"{held}\n{other}", other, other, other)])
    with monkeypatch.context() as changed:
        changed.setattr(lock_table, "_read_in_pieces", lambda path, size: next(readings))
        found = [lock.words[3] for lock in lock_table.all_locks()]
        assert sorted(found) == ["7", "8", *["9"] * 60] and next(readings, None) is None
        readings = iter([held, other])
        assert [lock.words[3] for lock in lock_table.all_locks()] == ["7"], "a short list is told at once"


def test_a_lock_is_seen_among_many_that_come_and_go(tmp_path: Path) -> None:
    """Some hundred locks take several reads of the list; half of them is taken and released all the time."""
    names = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(200)]
    ended = threading.Event()

    def churn(mine: list[int]) -> None:
        while not ended.is_set():
            for name in mine:
                fcntl.flock(name, fcntl.LOCK_EX)
            for name in mine:
                fcntl.flock(name, fcntl.LOCK_UN)

    steady = {os.fstat(name).st_ino for name in names[100:]}
    for name in names:
        fcntl.flock(name, fcntl.LOCK_EX)
    thread = threading.Thread(target=churn, args=(names[:100],))
    thread.start()
    try:
        missed = 0
        for _ in range(400):
            seen = {lock.inode[1] for lock in lock_table.all_locks()}
            missed += len(steady - seen)
        assert missed == 0
    finally:
        ended.set()
        thread.join()
        for name in names:
            os.close(name)
