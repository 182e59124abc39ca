"""wherry-reap for real: processes that a program leaves are reaped at once, and the reaper ends with them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import waiting
from wherry.base.paths import native_program

_LEAVE = 'setsid sleep 1000 >/dev/null 2>&1 & echo $! >"$1"; exit 7'


def reap(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(native_program("wherry-reap")), *words]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=waiting.bound(), check=False
    )


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_an_orphan_is_taken_in_and_reaped(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    done = reap("sh", "-c", _LEAVE, "sh", str(left))
    assert done.returncode == 7  # it does not wait for the orphan
    orphan = int(left.read_text())
    reaper = _parent(orphan)
    assert Path(f"/proc/{reaper}/comm").read_text() == "wherry-reap\n" and os.getsid(reaper) == reaper
    os.kill(orphan, signal.SIGKILL)
    # also a process that nobody has reaped yet has an id
    waiting.until(lambda: not Path(f"/proc/{orphan}").exists() and not _alive(reaper))


def _alive(pid: int) -> bool:
    """True unless it is gone, or waits for process 1 to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_it_says() -> None:
    done = reap("sh", "-c", "echo well; echo badly >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "well\n", "badly\n")
    assert reap("sh", "-c", "kill -9 $$").returncode == 125
    done = reap("/no/such")
    assert done.returncode == 125 and "wherry-reap: cannot run /no/such: No such file" in done.stderr
    assert reap().returncode == 125
