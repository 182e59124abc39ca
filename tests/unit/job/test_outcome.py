"""Why a job failed: from the last words of its launcher, and from the counters of its nodes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from wherry.job import holder_files, outcome
from wherry.job.outcome import Counted, Death, End
from wherry.model.records import Failure, Job, JobState, Node, NodeState
from wherry.node.protocol import Usage

MIB = 2**20
JOB = Job(
    id="job-1", cluster="hello", argv=("./x",), ranks=5, mpi="openmpi 4.1.4", uid=0, gid=0, cwd="/",
    state=JobState.RUNNING, created=0, nodes=("hello-0", "hello-1"),
)  # fmt: skip
OPENMPI = (
    "mpirun noticed that process rank 3 with PID 12 on node 10.77.1.2 exited\non signal 11 (Segmentation fault).\n"
)
PRTERUN = "prterun noticed that process rank 3 with PID 12 on node hello-1 exited on\nsignal 11 (Segmentation fault).\n"
MPICH = "=   PID 8 RUNNING AT 10.77.1.2\n=   EXIT CODE: {}\n=   CLEANING UP REMAINING PROCESSES\n{}"
STRING = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"


def end(index: int, *, alive: bool = True, **usage: int) -> End:
    node = Node(
        name=f"hello-{index}", cluster="hello", index=index, host="a1", address=f"10.77.1.{index + 1}", mac="",
        cpus=1, memory=128 * MIB, state=NodeState.RUNNING,
    )  # fmt: skip
    return End(node, alive, Usage(memory=0, cpu=0, processes=1, **usage))


def failure(*ends: End, code: int = 1, killed: Death | None = None, host: str = "a1", lost: str = "") -> Failure | None:
    before = {f"hello-{index}": Counted(host=host, oom_kills=2, refused_tasks=3) for index in range(2)}
    return outcome.failure(JOB, code, ends, before, killed, lost)


@pytest.mark.parametrize("found", [Failure(cause="node lost", node="hello-1"), Failure(cause="memory", node="hello-1")])
def test_a_node_may_have_none_but_spawned_processes(found: Failure) -> None:
    job = JOB.model_copy(update={"ranks": 1, "rank_nodes": ("hello-0",)})
    text = outcome.explained(job, found)[0]
    assert "hello-1" in text and "rank" not in text


@pytest.mark.parametrize(
    ("text", "code", "found"),
    [
        (OPENMPI, 139, Death("10.77.1.2", 11, 3)),
        (PRTERUN, 139, Death("hello-1", 11, 3)),
        (MPICH.format(139, "…EXIT STRING: Segmentation fault (signal 11)\n"), 11, Death("10.77.1.2", 11)),
        (MPICH.format(9, STRING), 9, Death("10.77.1.2", 9, sure=False)),
        (MPICH.format(9, ""), 255, Death("10.77.1.2", 9, sure=False)),
        (MPICH.format(7, ""), 7, None),
        ("exit 9\n", 9, None),
    ],
)
def test_what_launchers_say_of_a_rank_that_a_signal_killed(text: str, code: int, found: Death | None) -> None:
    assert outcome.death([("stdout", 0.0, b"noise"), ("stderr", 0.0, text.encode())], code) == found


def test_only_what_the_kernel_counted_since_the_start_is_a_reason() -> None:
    assert failure(end(0, oom_kills=2, refused_tasks=3), end(1)) is None
    assert failure(end(0, oom_kills=3), code=0) is None, "the program continued without the killed process"
    found = failure(end(0), end(1, oom_kills=3), killed=Death("10.77.1.2", 9, 4))
    assert found == Failure(cause="memory", node="hello-1", rank=4, signal=9, limit=128 * MIB)
    moved = failure(end(0, oom_kills=1), code=137, host="b2")
    assert moved and moved.cause == "memory", "its counters began at zero at the new host"
    found = failure(end(0, refused_tasks=4))
    assert found and (found.cause, found.limit) == ("processes", 4096)
    assert outcome.failure(JOB, 1, [end(0, oom_kills=9)], None, None, "") is None, "the start is not known"


@pytest.mark.parametrize("kind", ["mpi", "exec"])
def test_what_the_kernel_killed_of_another_job_is_no_reason(kind: str) -> None:
    """Jobs share nodes, and a node's counters: only a job of which something was killed ended by that."""
    job, before = JOB.model_copy(update={"kind": kind}), {"hello-0": Counted(host="a1", oom_kills=2, refused_tasks=3)}
    for code in (1, 7, 9, 255):
        assert outcome.failure(job, code, [end(0, oom_kills=3)], before, None, "") is None, code
    found = outcome.failure(job, 137, [end(0, oom_kills=3)], before, None, "")
    assert found and (found.cause, found.node) == ("memory", "hello-0"), "as a shell reports that its child was killed"


def test_a_rank_that_was_killed_at_another_node_did_not_lack_memory() -> None:
    found = failure(end(0, oom_kills=3), end(1, oom_kills=2), code=137, killed=Death("10.77.1.2", 9, 4))
    assert found and (found.cause, found.node, found.signal) == ("signal", "hello-1", 9)


def test_who_makes_user_namespaces_is_told_that_nodes_refuse_them() -> None:
    job = JOB.model_copy(update={"argv": ("/usr/bin/apptainer", "exec", "x.sif", "./x")})
    found = outcome.failure(job, 255, [end(0)], None, None, "")
    assert found == Failure(cause="user namespaces")
    what, remedy = outcome.explained(job, found)
    assert what.startswith("apptainer makes a user namespace") and "kind: vm" in remedy
    machine = End(end(0).node.model_copy(update={"kind": "vm"}), True, None)
    assert outcome.failure(job, 255, [machine], None, None, "") is None
    assert outcome.failure(job, 0, [end(0)], None, None, "") is None


@pytest.mark.parametrize("said", ["10.77.1.2", "hello-1"])
def test_a_launcher_names_a_node_by_its_address_or_name(said: str) -> None:
    """Open MPI 4 and MPICH by the address, Open MPI 5 by the name that the node has itself."""
    found = failure(end(0), end(1), code=139, killed=Death(said, 11, 3))
    assert found and (found.cause, found.node, found.rank, found.signal) == ("signal", "hello-1", 3, 11)


def test_a_signal_of_the_ranks_own_is_not_put_down_to_memory() -> None:
    found = failure(end(0), end(1, oom_kills=3), killed=Death("10.77.1.2", 11, 3))
    assert found and (found.cause, found.signal) == ("signal", 11)
    assert outcome.explained(JOB, found)[0] == "rank 3 on node hello-1 (signal 11, SIGSEGV) was killed"


def test_full_files() -> None:
    found = failure(end(0, files=96 * MIB - 4096, files_limit=96 * MIB))
    assert found and found.cause == "files" and "96MiB" in outcome.explained(JOB, found)[0]
    assert failure(end(0, files=95 * MIB, files_limit=96 * MIB)) is None


def test_a_full_disk() -> None:
    found = failure(end(0, files=MIB, files_limit=96 * MIB, disk=198 * MIB, disk_limit=200 * MIB))
    assert found and found.cause == "disk"
    what, remedy = outcome.explained(JOB, found)
    assert what == "the disk of node hello-0 for /tmp is full: it has 200MiB" and "tmp: 400MiB" in remedy
    assert failure(end(0, disk=100 * MIB, disk_limit=200 * MIB)) is None


def test_a_program_on_a_node_that_exits_with_a_code_has_ended() -> None:
    program = JOB.model_copy(update={"kind": "exec", "ranks": 1})
    full = end(0, oom_kills=9, refused_tasks=9, files=96 * MIB, files_limit=96 * MIB)
    before = {"hello-0": Counted(host="a1", oom_kills=2, refused_tasks=3)}
    assert outcome.failure(program, 1, [full], before, None, "") is None, "whatever others did there meanwhile"
    killed = outcome.failure(program, 137, [full], before, None, "")
    assert killed and killed.cause == "memory"
    lost = outcome.failure(program, 1, [full], before, None, "hello-0")
    assert lost and lost.cause == "node lost"


def test_a_lost_node_counts_before_everything_else() -> None:
    found = failure(end(0), end(1, alive=False), killed=Death("10.77.1.1", 9))
    assert found == Failure(cause="node lost", node="hello-1")
    assert outcome.explained(JOB, found) == ("its node hello-1 was lost", "wherry up FILE starts it again")
    found = failure(end(0, alive=False, oom_kills=3))
    assert found and "ran out of its 128MiB" in outcome.explained(JOB, found)[0]
    assert failure(end(0), lost="hello-1") == Failure(cause="node lost", node="hello-1")


@pytest.mark.parametrize(("node", "said"), [("hello-0", "one of ranks 0 to 2"), ("hello-1", "one of ranks 3 to 4")])
def test_the_ranks_of_a_node_when_the_launcher_names_none(node: str, said: str) -> None:
    text, _ = outcome.explained(JOB, Failure(cause="signal", node=node, signal=9, sure=False))
    assert text.startswith(f"{said} on node {node} (signal 9, SIGKILL, by which MPICH's launcher also ends")


def test_the_end_of_a_long_output_is_read_from_a_frame_on(tmp_path: Path) -> None:
    frames = b"".join(struct.pack(">BQI", 1 + n % 2, n, 50) + b"%050d" % n for n in range(1000))
    (tmp_path / "output").write_bytes(frames)
    tail = holder_files.read_tail(tmp_path, 1000)
    assert [int(data) for _, _, data in tail] == list(range(1000 - len(tail), 1000)) and len(tail) == 1000 // 63
    assert holder_files.read_tail(tmp_path / "none") == []


def test_counters_that_cannot_be_read_are_not_known(tmp_path: Path) -> None:
    assert outcome.read_counted(tmp_path / "counted") is None
    (tmp_path / "counted").write_text(
        outcome.counted({"hello-0": ("a1", Usage(memory=0, cpu=0, processes=1, oom_kills=2))})
    )
    assert outcome.read_counted(tmp_path / "counted") == {"hello-0": Counted(host="a1", oom_kills=2, refused_tasks=0)}
