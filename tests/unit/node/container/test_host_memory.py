"""How a move treats the messages that wait in a host's memory. Directories stand for the memory and the node."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from wherry.base.errors import Code, Failed, Refused
from wherry.job import inside
from wherry.job.validation import plan
from wherry.model.host_memory import KEPT
from wherry.model.job_request import JobRequest
from wherry.model.owner import Owner
from wherry.model.records import Cluster
from wherry.node.container import host_memory
from wherry.node.container.host_memory import HostMemory

JOB = "job-1a"


@pytest.fixture
def memory(tmp_path: Path) -> HostMemory:
    made = HostMemory(tmp_path / "shared", "node", Owner(uid=os.getuid(), gid=os.getgid(), home="/", cwd="/"), 1 << 30)
    (made.outside / JOB).mkdir(parents=True)
    return made


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    directory = tmp_path / "private" / KEPT.strip("/")
    directory.mkdir(parents=True)
    return directory


def put(memory: HostMemory, rank: int, sender: int, slot: int, serial: int, content: bytes = b"text") -> None:
    directory = memory.outside / JOB / f"{rank}"
    directory.mkdir(exist_ok=True)
    head = struct.pack("=QQ", serial, len(content)).ljust(64, b"\0")
    (directory / f"{sender}.{slot}").write_bytes(head + content)


def mark(kept: Path, *ranks: int) -> None:
    for rank in ranks:
        (kept / f"{JOB}.{rank}").touch()
    (kept / f"{JOB}.host").symlink_to("/elsewhere")


def private(kept: Path) -> Path:
    return kept.parents[2]


def test_messages_for_ranks_of_the_node_are_taken_along_and_no_others(memory: HostMemory, kept: Path) -> None:
    put(memory, 1, 0, 3, 7, b"seven")
    put(memory, 1, 2, 0, 0, b"received")
    put(memory, 4, 1, 0, 9, b"nine")
    mark(kept, 1)
    memory.take_home(private(kept))
    assert sorted(path.name for path in kept.iterdir()) == [f"{JOB}.1", f"{JOB}.1.0.7"]
    assert (kept / f"{JOB}.1.0.7").read_bytes()[64:] == b"seven"
    assert [str(path.relative_to(memory.outside / JOB)) for path in (memory.outside / JOB).rglob("*")] == ["4", "4/1.0"]


def test_what_a_killed_daemon_began_is_finished(memory: HostMemory, kept: Path) -> None:
    put(memory, 1, 0, 0, 7)
    mark(kept, 1)
    (memory.outside / JOB / "1").rename(memory.outside / JOB / "1.gone")
    put(memory, 1, 0, 1, 8)
    memory.finish(private(kept))
    assert (kept / f"{JOB}.1.0.7").exists()
    assert (memory.outside / JOB / "1" / "0.1").exists()
    assert (kept / f"{JOB}.host").is_symlink()


def test_without_room_all_stays_where_it_is(memory: HostMemory, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(memory, 1, 0, 0, 7)
    mark(kept, 1)
    full = os.statvfs_result((4096, 4096, 10, 0, 0, 9, 9, 9, 0, 255))
    monkeypatch.setattr(host_memory.os, "fstatvfs", lambda fd: full)
    with pytest.raises(Failed, match="have to be taken along"):
        memory.take_home(private(kept))
    assert (memory.outside / JOB / "1" / "0.0").exists()
    assert (kept / f"{JOB}.host").is_symlink()


def test_links_and_rubbish_of_the_user_are_not_followed(memory: HostMemory, kept: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(struct.pack("=QQ", 5, 4).ljust(64, b"\0") + b"root")
    put(memory, 1, 0, 0, 7)
    put(memory, 1, 0, 1, 8, b"x" * (1 << 20))
    (memory.outside / JOB / "1" / "0.2").symlink_to(secret)
    os.mkfifo(memory.outside / JOB / "1" / "0.3")
    (memory.outside / JOB / "1" / "name").write_bytes(b"rubbish")
    (memory.outside / "job-2b").symlink_to(tmp_path)
    (tmp_path / "1").mkdir()
    (kept / "job-2b.1").touch()
    (kept / f"{JOB}.1.0.7").symlink_to(secret)
    mark(kept, 1)
    memory.take_home(private(kept))
    assert sorted(path.name for path in kept.iterdir()) == [f"{JOB}.1", f"{JOB}.1.0.7", "job-2b.1"]
    assert not (kept / f"{JOB}.1.0.7").is_symlink()
    assert secret.read_bytes()[64:] == b"root"
    assert (tmp_path / "1").is_dir()


def test_a_node_that_knows_no_such_memory(tmp_path: Path, memory: HostMemory) -> None:
    memory.take_home(tmp_path / "private")
    none = HostMemory(tmp_path / "none", "node", memory.owner, 1 << 30)
    none.take_home(tmp_path / "private")
    assert none.user_of([os.getpid()]) is None
    none.leave()


def cluster(kind: str) -> Cluster:
    spec = {"name": "hello", "nodes": 1, "kind": kind}
    return Cluster.model_validate(
        {"name": "hello", "spec": spec, "state": "running", "network": 1, "subnet": "10.0.0.0/24", "head_host": "a",
         "owner_uid": 0, "owner_gid": 0, "created": 0}
    )  # fmt: skip


def test_virtual_machines_are_refused_with_the_reason() -> None:
    owner = Owner(uid=0, gid=0, home="/", cwd="/")
    order = JobRequest(cluster="hello", argv=("true",), ranks=1, owner=owner, env={}, host_memory=True)
    with pytest.raises(Refused, match="ivshmem") as refused:
        plan(order, cluster("vm"))
    assert refused.value.code is Code.UNSUPPORTED


def test_a_job_without_it_is_told_nothing_of_it() -> None:
    plain, asked = (inside.environment(cluster("container"), JOB, "secret", with_it) for with_it in (False, True))
    assert asked.keys() - plain.keys() == {inside.SHARED, inside.KEPT, inside.SECRET}
    assert asked[inside.KEPT] == f"{KEPT}/{JOB}" and len(asked[inside.SECRET]) == 64
    assert asked[inside.SECRET] not in plain.values()
    assert asked[inside.SECRET] != inside.environment(cluster("container"), "job-2", "secret", True)[inside.SECRET]
