"""`wherry job check` and `wherry move --dry-run` report things that would prevent or prolong a move."""

from __future__ import annotations

import os

import pytest
from realworld import RealInstance, eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

PROGRAM = """
import fcntl, mmap, os, sys, time
shared = mmap.mmap(-1, 8 << 20)
shared.write(b"s" * (8 << 20))
if "pipe" in sys.argv:
    ends = os.pipe2(os.O_DIRECT)
print("ready", flush=True)
time.sleep(600)
"""


def running(four: RealInstance, *words: str) -> str:
    """Starts the program as a job; its id."""
    path = four.directory / "holder.py"
    path.write_text(PROGRAM)
    begun = four("run", "four", "-n", "2", "--mpi", "openmpi", "--detach", "--", "/usr/bin/python3", str(path), *words)
    assert begun.returncode == 0, begun.stderr
    job = begun.stdout.strip()
    assert eventually(lambda: four("logs", "four", "--job", job).stdout.count("ready"), 2) == 2
    return job


def test_a_job_is_checked_from_the_command_line(four: RealInstance) -> None:
    job = running(four)
    said = four("job", "check", job)
    assert said.returncode == 0, said
    assert "four-0 on a1: can move to a2, b1, b2" in said.stdout or "four-1 on a1: can move to" in said.stdout, (
        said.stdout
    )
    assert "(python3) has changed pages of files" in said.stdout, said.stdout
    assert "shared memory" not in said.stdout, "8 MiB of it go while the node runs"
    (node, *_) = four.json("job", "check", job)["nodes"]
    assert {host["host"] for host in node["hosts"]} == set(four.hosts()) - {node["host"]}
    dry = four("move", node["node"], "--to", node["hosts"][0]["host"], "--dry-run")
    assert dry.returncode == 0 and "prolongs a move: process" in dry.stdout, dry


def test_what_prevents_a_move_is_told_and_refused(four: RealInstance) -> None:
    job = running(four, "pipe")
    said = four("job", "check", job)
    assert said.returncode == 4 and "cannot be moved" in said.stdout, said
    assert "(python3) holds a pipe in packet mode (O_DIRECT) (descriptor" in said.stdout, said.stdout
    (node, *_) = four.json("job", "show", job)["nodes"]
    there = next(host for host in four.hosts() if host != four.hosts_of("four")[node])
    for words in (("--dry-run",), ()):
        refused = four("move", node, "--to", there, *words)
        assert refused.returncode == 4 and "packet mode" in refused.stderr, refused
