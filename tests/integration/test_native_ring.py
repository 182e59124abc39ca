"""wherry-ring and libwherry-finalize on this machine alone: the program that the tests of moves rely on is right."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import native_runs
import pytest

from wherry.base.errors import Refused
from wherry.base.paths import native_library, native_program

COMMANDS = {
    "openmpi": (
        "mpirun.openmpi --oversubscribe -n 3 --mca btl tcp,self --mca btl_tcp_if_include lo"
        " -x LD_PRELOAD=libwherry-finalize.so"
    ),
    "mpich": "mpiexec.mpich -n 3 -genv UCX_TLS tcp,self -genv LD_PRELOAD libwherry-finalize.so",
}


def ring(flavour: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = COMMANDS[flavour].split()
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]} on this machine")
    try:
        program: Path = native_program(f"wherry-ring-{flavour}")
    except Refused:
        pytest.skip(f"no compiler wrapper mpicc.{flavour} when the native programs were built")
    # By name, as LD_PRELOAD is a list with blanks and the checkout's path may have some.
    env = native_runs.environment(LD_LIBRARY_PATH=str(native_library("libwherry-finalize.so").parent))
    return subprocess.run([*command, str(program), *options], capture_output=True, text=True, timeout=120, env=env)


@pytest.mark.parametrize("flavour", sorted(COMMANDS))
def test_it_checks_and_reports(flavour: str) -> None:
    done = ring(flavour, "--seconds", "1", "--size", "10001", "--memory", "2", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["errors"] == 0 and report["ranks"] == 3 and report["iterations"] % 16 == 0
    assert report["checked_bytes"] >= 3 * report["iterations"] * 10001
    assert 0 < report["max_gap_ms"] / 1000 <= report["seconds"]


@pytest.mark.parametrize(("pages", "written"), [("1", 1), ("40", 40), ("9999", 256)])
def test_it_writes_as_many_pages_in_each_iteration_as_it_is_told(pages: str, written: int) -> None:
    """At most all of its memory, here 256 pages a rank."""
    done = ring("openmpi", "--seconds", "0.2", "--memory", "1", "--pages", pages, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["errors"] == 0 and report["written_bytes"] == 3 * report["iterations"] * written * 4096


def test_it_pauses_in_each_iteration() -> None:
    done = ring("openmpi", "--seconds", "0.2", "--pause", "20", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["errors"] == 0 and report["seconds"] >= 0.02 * report["iterations"] > 0


@pytest.mark.parametrize("flavour", sorted(COMMANDS))
@pytest.mark.parametrize("option", ["--size", "--pages"])
def test_a_wrong_option_is_refused(flavour: str, option: str) -> None:
    done = ring(flavour, option, "0")
    assert done.returncode != 0
    assert "usage: wherry-ring" in done.stderr
