"""The daemon may open more files than the shell that started it; programs of users may as many as before."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from wherry.base import open_files
from wherry.node.container import limits


def test_a_daemon_that_recovers_may_open_more_than_its_shell(tmp_path: Path) -> None:
    program = f"""
        import os, resource, signal, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from pathlib import Path
        from rest_service import Here
        from wherry.node.container import limits
        from wherry.service import context, daemon

        def recover(self):
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
