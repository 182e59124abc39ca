"""A second measurement in an instance is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wherry.base.errors import Refused
from wherry.lab.sole_use import sole_use

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
