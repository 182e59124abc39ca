"""The daemon may open more files than the shell that started it; programs of users may as many as before."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from rest_service import Here

import waiting
from wherry.base import open_files
from wherry.base.wait import readable
from wherry.client import daemon_process
from wherry.job import mpi
from wherry.node.container import limits


def test_a_daemon_that_recovers_may_open_more_than_its_shell(tmp_path: Path) -> None:
    program = f"""
        import os, resource, signal, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from pathlib import Path
        from rest_service import Here
        from wherry.node.container import limits
        from wherry.service import context, daemon

        def recover(self, resume):
            (node,) = limits.open_files()
            print(*resource.getrlimit(resource.RLIMIT_NOFILE), node["soft"])
            os.kill(os.getpid(), signal.SIGTERM)

        context.ServiceContext.recover = recover
        hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 8192)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        place = Here("test", Path({str(tmp_path)!r}))
        place.run.mkdir()
        daemon._run(place, None)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 8192)
    assert done.stdout == f"{hard} {hard} 1024\n", done.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, 1 << 30), (65536, 1 << 30)),
        ((4096, 4096), None),
        ((100000, 1 << 30), None),
    ],
)
def test_the_limit_is_raised_as_far_as_is_of_use(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, int], after: tuple[int, int] | None
) -> None:
    """And never lowered. Programs that close all that they may have open inherit it."""
    now = {resource.RLIMIT_NOFILE: before}
    monkeypatch.setattr(resource, "getrlimit", now.get)
    monkeypatch.setattr(resource, "setrlimit", now.__setitem__)
    monkeypatch.setattr(open_files, "_started_with", None)
    open_files.raise_limit()
    assert now[resource.RLIMIT_NOFILE] == (after or before)
    assert open_files.limits() == before
    open_files.raise_limit()
    assert open_files.limits() == before


def test_a_node_may_open_what_it_could_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {resource.RLIMIT_NOFILE: (1024, 1 << 20)}
    monkeypatch.setattr(resource, "getrlimit", now.get)
    monkeypatch.setattr(resource, "setrlimit", now.__setitem__)
    monkeypatch.setattr(open_files, "_started_with", None)
    before = limits.open_files()
    open_files.raise_limit()
    assert limits.open_files() == before


# Waiting for descriptors and processes in a process that has more descriptors than select(2) takes.


beyond_select = pytest.mark.usefixtures("thousand_descriptors")


@beyond_select
def test_a_process_that_ends_is_noticed() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        pidfd = os.pidfd_open(process.pid)
        assert process.stdin and pidfd > 1024 and not readable(pidfd, 0.0)
        process.stdin.close()
        assert readable(pidfd, None)
        os.close(pidfd)


@beyond_select
def test_a_daemon_is_stopped(tmp_path: Path) -> None:
    place = Here("test", tmp_path)
    place.run.mkdir()
    lock = place.run / "lock"
    with subprocess.Popen(["flock", "--no-fork", lock, "sleep", "60"]) as holder:
        lock.write_text(str(holder.pid))
        waiting.until(lambda: daemon_process.holder(place), "the lock")
        assert daemon_process.stop(place) == holder.pid and holder.wait() < 0


@beyond_select
def test_the_version_of_a_launcher_is_read() -> None:
    words = ["echo", "mpirun (Open MPI) 4.1.4"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as program:
        assert "Open MPI" in mpi._output(program)
