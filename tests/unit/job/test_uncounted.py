"""Why calls of MPI are not counted: by a job's request, and by the processes of its ranks."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wherry.base.errors import Code, Refused
from wherry.job import uncounted
from wherry.job.mpi_profile import Reading
from wherry.job.validation import plan
from wherry.model.job_request import JobRequest
from wherry.model.owner import Owner
from wherry.model.records import Cluster
from wherry.node import mpi_page

PROGRAM = Path(sys.executable).resolve()


def cluster(kind: str = "container") -> Cluster:
    spec = {"name": "hello", "nodes": 1, "kind": kind}
    return Cluster.model_validate(
        {"name": "hello", "spec": spec, "state": "running", "network": 1, "subnet": "10.0.0.0/24", "head_host": "a",
         "owner_uid": 0, "owner_gid": 0, "created": 0}
    )  # fmt: skip


def request(**more: bool) -> JobRequest:
    owner = Owner(uid=0, gid=0, home="/", cwd="/")
    return JobRequest(cluster="hello", argv=("true",), ranks=1, owner=owner, env={}, **more)


def test_what_a_request_shows(tmp_path: Path) -> None:
    assert uncounted.at_start(request(), cluster(), [PROGRAM]) == ""
    assert uncounted.at_start(request(plain=True), cluster(), [PROGRAM]) == uncounted.PLAIN
    assert uncounted.at_start(request(), cluster("vm"), [PROGRAM]) == uncounted.MACHINES
    static, script = tmp_path / "solver", tmp_path / "script"
    header = b"\x7fELF\x02\x01" + bytes(26) + struct.pack("<Q", 64) + bytes(14) + struct.pack("<HH", 56, 1) + bytes(6)
    static.write_bytes(header + bytes(56))
    script.write_text("#!/bin/sh\n")
    assert uncounted.at_start(request(), cluster(), [PROGRAM, script]) == ""
    why = uncounted.at_start(request(), cluster(), [PROGRAM, static])
    assert "solver is statically linked" in why and why not in uncounted.EXPECTED


@pytest.mark.parametrize("option", ["site_collectives", "place_spawned", "host_memory"])
def test_a_plain_job_is_refused_what_needs_wherry_inside_mpi(option: str) -> None:
    with pytest.raises(Refused, match=f"--plain and --{option.replace('_', '-')} exclude") as refused:
        plan(request(plain=True, **{option: True}), cluster())
    assert refused.value.code is Code.USAGE


def test_what_processes_show(tmp_path: Path) -> None:
    """A process that has mapped files of these names."""
    script = (
        "import mmap, sys\n"
        "files = [open(name, 'rb') for name in sys.argv[1:]]\n"
        "kept = [mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ) for file in files]\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    ours, theirs = tmp_path / "libwherry-mpi.so", tmp_path / "libmpi.so.40"
    for file in (ours, theirs):
        file.write_bytes(bytes(mmap.PAGESIZE))
    for names, expected in (((), "without LD_PRELOAD"), ((ours,), "no MPI library"), ((ours, theirs), "dlopen, dlsym")):
        words = [sys.executable, "-c", script, *map(str, names)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin and process.stdout
            process.stdout.readline()
            assert expected in mpi_page.why_none(process.pid)
            process.stdin.close()
            process.wait(10)
    assert mpi_page.why_none(2**22 + os.getpid()) == "", "it has ended"


def test_a_host_is_asked_for_the_reason_in_its_own_processes() -> None:
    told = {("a1", "hello-0", 7): "short", ("b1", "hello-1", 7): "a longer reason"}

    def host(name: str) -> Any:
        return SimpleNamespace(why_uncounted=lambda node, pid: told[name, node, pid])

    assert uncounted.while_it_runs(Reading(bare=list(told)), host) == "a longer reason"
    assert uncounted.while_it_runs(Reading(), host) == ""
