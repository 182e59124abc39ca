"""wherry-ns shows programs given cgroups as the roots of all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

import waiting
from names import own_name
from wherry.base.paths import native_program
from wherry.fabric.cgroup import Cgroup

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are root's")


@pytest.fixture
def group() -> Iterator[Cgroup]:
    made = Cgroup(f"wherry-{own_name('tcgn')}/below")
    made.create()
    yield made
    Cgroup(os.path.dirname(made.name)).remove()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(native_program("wherry-ns")), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=waiting.bound())


def test_a_program_sees_the_cgroups_as_roots_and_is_in_none_of_them(group: Cgroup) -> None:
    roots = [word for file in group.procs_files() for word in ("--cgroup-root", file)]
    done = run(*roots, "--", "sh", "-c", 'cat /proc/self/cgroup; cat "$0"', group.freezer_procs_file())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("/..") >= 2 * len(group.procs_files()) and done.stdout.endswith("\n")
    assert group.pids() == []
    joined = [word for file in group.procs_files() for word in ("--cgroup", file)]
    shown = run(*joined, *roots, "--", "cat", "/proc/self/cgroup").stdout.splitlines()
    assert [line for line in shown if "/.." in line or group.name in line] == []


@pytest.mark.parametrize("file", ["/nowhere/cgroup.procs", "/proc/self/comm/x"])
def test_what_is_no_cgroup_starts_nothing(file: str) -> None:
    done = run("--cgroup-root", file, "--", "echo", "started")
    assert (done.returncode, done.stdout) == (125, "") and f"cannot join the cgroup {file}" in done.stderr
