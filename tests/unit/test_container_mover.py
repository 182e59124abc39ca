"""A container's mover: what a killed daemon's move leaves to receive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from wherry.node.container.transport import end_receivers


def test_who_waits_for_a_killed_daemons_move_is_ended_and_nobody_else(tmp_path: Path) -> None:
    here, other = tmp_path / "c-0@b1", tmp_path / "c-0@b10"
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(100)"]
    words = [
        ("page-server", "--images-dir", f"{here}/images/0"),
        ("--extract", f"--directory={here}/private"),
        ("--extract", f"--directory={other}/private"),
        ("--create", f"--directory={here}/private"),
    ]
    processes = [subprocess.Popen([*sleep, *more], stdout=subprocess.PIPE) for more in words]
    try:
        for process in processes:  # until it is what its words say
            assert process.stdout and process.stdout.readline()
        end_receivers(here)
        assert [processes[index].wait(20) for index in (0, 1)] == [-9, -9]
        assert [processes[index].poll() for index in (2, 3)] == [None, None]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
