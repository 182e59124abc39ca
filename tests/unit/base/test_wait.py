"""Waiting for descriptors and processes in a process that has more descriptors than select(2) takes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from rest_service import Here

import waiting
from wherry.base.wait import readable
from wherry.client import daemon_process
from wherry.job import mpi
from wherry.manycore import launch

pytestmark = pytest.mark.usefixtures("thousand_descriptors")


def test_a_process_that_ends_is_noticed() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        pidfd = os.pidfd_open(process.pid)
        assert process.stdin and pidfd > 1024 and not readable(pidfd, 0.0)
        process.stdin.close()
        assert readable(pidfd, None)
        os.close(pidfd)


def test_a_daemon_is_stopped(tmp_path: Path) -> None:
    place = Here("test", tmp_path)
    place.run.mkdir()
    lock = place.run / "lock"
    with subprocess.Popen(["flock", "--no-fork", lock, "sleep", "60"]) as holder:
        lock.write_text(str(holder.pid))
        waiting.until(lambda: daemon_process.holder(place), "the lock")
        assert daemon_process.stop(place) == holder.pid and holder.wait() < 0


def test_the_version_of_a_launcher_is_read() -> None:
    words = ["echo", "mpirun (Open MPI) 4.1.4"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as program:
        assert "Open MPI" in mpi._output(program)


def test_the_first_event_of_tiles_is_read(tmp_path: Path) -> None:
    with subprocess.Popen(["echo", '{"event": "ready"}'], stdout=subprocess.PIPE) as board:
        assert launch._receive(tmp_path / "tiles", [board], "ready") == {"event": "ready"}
