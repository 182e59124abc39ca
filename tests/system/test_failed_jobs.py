"""Jobs that fail on real nodes: reports of memory, files, processes and signals, by both MPIs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from realworld import SECONDS, RealInstance

from wherry.fabric.cgroup import TASKS, machine_layout

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

LAUNCHERS = {"openmpi": "/usr/bin/mpirun.openmpi", "mpich": "/usr/bin/mpiexec.mpich"}
ONLY = 'test "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 3 || exec sleep 30; '
"""Begins a program of four ranks of which the last one fails."""
THREADS = """
import threading, time
threading.stack_size(65536)
try:
    while True:
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
except RuntimeError:
    import os
    os._exit(5)
"""


@pytest.fixture(scope="module", autouse=True)
def clusters(four: RealInstance) -> Iterator[None]:
    """Nodes with little memory, and one with more."""

    def make() -> None:
        four.up("small", 2, more="sites: [a]\n")
        four.up("large", 1, memory="768MiB")

    with four.kept.also(make):
        yield


@pytest.fixture(params=list(LAUNCHERS))
def flavour(request: pytest.FixtureRequest) -> str:
    flavour = str(request.param)
    if not Path(LAUNCHERS[flavour]).exists():
        pytest.skip(f"{LAUNCHERS[flavour]} is not installed")
    return flavour


def failed(four: RealInstance, cluster: str, ranks: int, flavour: str, *words: str) -> tuple[dict[str, Any], str]:
    """The record of a job that fails, and the last lines of `wherry run`, which say the same as record and event."""
    for _ in range(3):
        done = four("run", cluster, "-n", str(ranks), "--mpi", flavour, "--", *words)
        if "process manager error" not in done.stderr:  # MPICH's launcher sometimes fails itself, on a busy machine
            break
    job = four.json("job", "list", cluster)["jobs"][-1]
    assert job["state"] == "failed" and done.returncode == job["exit_code"] != 0, (job, done.stderr)
    told = done.stderr.splitlines()[-3:]
    assert told == [f"error JOB_FAILED: job {job['id']} failed", f"  why: {job['reason']}", f"  next: {job['next']}"]
    shown = four("job", "show", job["id"]).stdout
    assert job["reason"] in shown and job["next"] in shown
    events = four.json("event", "list")["events"]
    (event,) = [e for e in events if (e["target"], e["kind"]) == (job["id"], "job.end")]
    assert job["reason"] in event["text"] and event["data"]["node"] == job["failure"]["node"]
    return job, done.stderr


def test_a_rank_that_a_signal_kills(four: RealInstance, flavour: str) -> None:
    """Open MPI names the rank; MPICH's launcher may name the signal by which it ended the other ranks of the node."""
    job, _ = failed(four, "small", 4, flavour, "/bin/sh", "-c", ONLY + "kill -SEGV $$")
    assert job["failure"]["cause"] == "signal" and job["failure"]["node"] == "small-1"
    if flavour == "openmpi":
        assert job["reason"] == "rank 3 on node small-1 (signal 11, SIGSEGV) was killed"
    else:
        assert "one of ranks 2 to 3 on node small-1 (signal " in job["reason"]
    assert f"--job {job['id']}" in job["next"]


def test_the_exit_code_of_a_program_is_no_failure(four: RealInstance, flavour: str) -> None:
    assert four("run", "small", "-n", "1", "--mpi", flavour, "--", "/bin/sh", "-c", "exit 9").returncode == 9
    job = four.json("job", "list", "small")["jobs"][-1]
    assert (job["state"], job["exit_code"], job["failure"], job["reason"]) == ("ended", 9, None, "")


def test_a_node_without_memory(four: RealInstance, flavour: str) -> None:
    program = ONLY + "exec /usr/bin/python3 -c 'x = [bytearray(1 << 20) for _ in range(300)]'"
    job, _ = failed(four, "small", 4, flavour, "/bin/sh", "-c", program)
    failure = job["failure"]
    assert (failure["cause"], failure["node"], failure["limit"]) == ("memory", "small-1", 128 * 2**20)
    assert "node small-1 ran out of memory: it has 128MiB" in job["reason"]
    assert ("rank 3 on node small-1 (signal 9" if flavour == "openmpi" else "ranks 2 to 3 on node") in job["reason"]
    assert "memory: 256MiB" in job["next"] and "wherry down small" in job["next"]


def test_a_rank_whose_child_lacked_memory(four: RealInstance, flavour: str) -> None:
    """The rank is a shell, which exits with 137: the launcher reports no signal."""
    program = ONLY + "/usr/bin/python3 -c 'x = [bytearray(1 << 20) for _ in range(300)]'; exit $?"
    job, _ = failed(four, "small", 4, flavour, "/bin/sh", "-c", program)
    assert (job["failure"]["cause"], job["failure"]["node"]) == ("memory", "small-1")
    assert "node small-1 ran out of memory: it has 128MiB" in job["reason"]


def test_a_job_is_not_blamed_for_the_memory_of_another(four: RealInstance, flavour: str) -> None:
    """It shares its node with a program that is killed meanwhile, and ends with a code of its own."""
    go = four.directory / f"go-{flavour}"
    wait = f"echo ready; until test -e {go}; do sleep 0.1; done; exit 7"
    job = four.start("run", "small", "-n", "1", "--mpi", flavour, "--", "/bin/sh", "-c", wait)
    assert job.stdout and job.stdout.readline() == "ready\n"
    hog = four("exec", "small-0", "--", "/usr/bin/python3", "-c", "x = [bytearray(1 << 20) for _ in range(300)]")
    assert hog.returncode == 137 and "ran out of memory" in hog.stderr
    go.touch()
    said = job.communicate(timeout=SECONDS)[1]
    record = next(j for j in four.json("job", "list", "small")["jobs"][::-1] if j["kind"] == "mpi")
    assert job.returncode == 7 and (record["state"], record["exit_code"], record["failure"]) == ("ended", 7, None), said


def test_a_node_whose_files_are_full(four: RealInstance, flavour: str) -> None:
    """Nothing is killed; jobs run again once the files are removed."""
    write = "exec dd if=/dev/zero of=/tmp/big bs=1M count=300"
    job, said = failed(four, "small", 1, flavour, "/bin/sh", "-c", write)
    assert "No space left on device" in said
    assert (job["failure"]["cause"], job["failure"]["limit"]) == ("files", 96 * 2**20)
    assert "the files of node small-0 are full" in job["reason"] and "memory" in job["next"]
    assert four("run", "small", "-n", "1", "--mpi", flavour, "--", "/bin/rm", "/tmp/big").returncode == 0


@pytest.mark.skipif(os.geteuid() == 0 and machine_layout().root("pids") is None, reason="no pids controller")
def test_a_node_with_the_most_processes(four: RealInstance, flavour: str) -> None:
    job, _ = failed(four, "large", 1, flavour, "/usr/bin/python3", "-c", THREADS)
    assert (job["failure"]["cause"], job["failure"]["limit"]) == ("processes", TASKS)
    assert (
        f"node large-0 reached the limit of {TASKS} processes and threads" in job["reason"] and "nodes:" in job["next"]
    )
