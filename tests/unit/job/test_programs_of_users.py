"""Root reads a user's program to find its MPI: whatever is in the file, it costs little and is no mistake of ours."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest
from test_mpi import write_elf

from wherry.base.errors import Code, Refused
from wherry.job import validation
from wherry.job.mpi import parse_version
from wherry.model.job_request import JobRequest
from wherry.model.owner import Owner
from wherry.model.records import Cluster
from wherry.node import elf


def header(segments: int, offset: int = 64) -> bytes:
    more = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, offset, 0, 0, 64, 56, segments, 64, 0, 0)
    return b"\x7fELF\x02\x01\x01" + bytes(9) + more


def test_an_offset_that_no_file_has(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(header(2, 2**64 - 1) + bytes(200))
    assert elf.read(tmp_path / "p") is None


def test_segments_without_end_are_not_read(tmp_path: Path) -> None:
    """Each is a dynamic section as large as is read at all, in a file with holes."""
    segment = struct.pack("<IIQQQQQQ", 2, 4, 1 << 22, 0, 0, 1 << 40, 1 << 40, 8)
    with open(tmp_path / "p", "wb") as file:
        file.write(header(65535) + segment * 65535)
        file.truncate(64 << 20)
    began = time.process_time()
    assert elf.read(tmp_path / "p") is None
    assert time.process_time() - began < 1


def test_names_without_end_are_not_kept(tmp_path: Path) -> None:
    """A million times the same library, whose name is all of the file."""
    count, at = 1 << 20, 64 + 2 * 56
    strings = at + 16 * (count + 3)
    dynamic = struct.pack("<QQ", 1, 0) * count + struct.pack("<QQQQQQ", 5, strings, 10, 16 << 20, 0, 0)
    size = strings + (17 << 20)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 1)
    dyn = struct.pack("<IIQQQQQQ", 2, 4, at, at, at, len(dynamic), len(dynamic), 8)
    (tmp_path / "p").write_bytes(header(2) + load + dyn + dynamic + b"x" * (15 << 20) + bytes(2 << 20))
    began = time.process_time()
    assert elf.read(tmp_path / "p") in (None, elf.Elf(tmp_path / "p", (), (), ()))
    assert time.process_time() - began < 2


def test_what_real_programs_need_is_read(tmp_path: Path) -> None:
    names = tuple(f"lib{number}.so" for number in range(300))
    directories = ":".join(f"/opt/{number}/lib" for number in range(500))
    found = elf.read(write_elf(tmp_path / "p", names, directories))
    assert found and found.needed == names and len(found.runpath) == 500


def test_a_version_of_any_length() -> None:
    found = parse_version(f"mpirun (Open MPI) {'9' * 6000}.1\n", Path("/x"))
    assert found is not None and found.version == (999999999,)


@pytest.mark.parametrize("how", [{"argv": ("true", "x" * 200_000)}, {"env": {"PATH": "/bin:" * 50_000}}])
def test_words_that_no_kernel_takes(tmp_path: Path, how: dict[str, object]) -> None:
    owner = Owner(uid=os.getuid(), gid=os.getgid(), home="/", cwd=str(tmp_path))
    cluster = Cluster.model_validate(
        {"name": "hello", "spec": {"name": "hello", "nodes": 1}, "state": "running", "network": 1,
         "subnet": "10.0.0.0/24", "head_host": "a", "owner_uid": owner.uid, "owner_gid": owner.gid, "created": 0}
    )  # fmt: skip
    order = JobRequest.model_validate(
        {"cluster": "hello", "argv": ("true",), "ranks": 1, "owner": owner, "env": {}, **how}
    )
    with pytest.raises(Refused) as refused:
        validation.plan(order, cluster)
    assert refused.value.code is Code.USAGE and "128 KiB" in refused.value.why
