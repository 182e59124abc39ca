"""The MPI that a program uses: read from ELF files made here, launchers that answer `--version` made here too."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest

from wherry.base.errors import Code, Refused
from wherry.job import mpi, validation
from wherry.job.mpi import parse_version
from wherry.model.job_request import JobRequest
from wherry.model.owner import Owner
from wherry.model.records import Cluster
from wherry.node import elf

OPENMPI = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
MPICH = "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: x\n"


def write_elf(path: Path, needed: tuple[str, ...] = (), runpath: str = "", rpath: str = "") -> Path:
    """The least ELF file with a dynamic section: one segment that maps all of it at address 0x1000."""
    names = bytearray(b"\0")
    entries = []
    for tag, text in [
        *((1, name) for name in needed),
        *((29, p) for p in [runpath] if p),
        *((15, p) for p in [rpath] if p),
    ]:
        entries.append((tag, len(names)))
        names += text.encode() + b"\0"
    count = len(entries) + 3
    at = 64 + 2 * 56
    table = at + 16 * count
    entries += [(5, 0x1000 + table), (10, len(names)), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    size = table + len(names)
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0x1000, size, size, 0x1000)
    dyn = struct.pack("<IIQQQQQQ", 2, 4, at, 0x1000 + at, 0x1000 + at, len(dynamic), len(dynamic), 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + load + dyn + dynamic + bytes(names))
    path.chmod(0o755)
    return path


def write_launcher(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}END\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(uid=os.getuid(), gid=os.getgid(), home=str(tmp_path), cwd=str(tmp_path))


def test_needs_and_directories_are_read(tmp_path: Path) -> None:
    found = elf.read(write_elf(tmp_path / "p", ("libmpi.so.40", "libc.so.6"), "$ORIGIN/../lib:/opt/lib"))
    assert found is not None
    assert found.needed == ("libmpi.so.40", "libc.so.6")
    assert found.runpath == (f"{tmp_path}/../lib", "/opt/lib")


@pytest.mark.parametrize("cut", [0, 3, 63, 100, 200, 300])
def test_a_file_cut_short_is_no_elf_or_needs_nothing_odd(tmp_path: Path, cut: int) -> None:
    path = write_elf(tmp_path / "p", ("libmpi.so.40",), "/opt/lib")
    path.write_bytes(path.read_bytes()[:cut])
    found = elf.read(path)
    assert found is None or found.needed in ((), ("libmpi.so.40",))


def test_a_script_is_no_elf(tmp_path: Path) -> None:
    assert elf.read(write_launcher(tmp_path / "s", "")) is None


def test_our_own_interpreter_can_be_read() -> None:
    found = elf.read(Path(os.path.realpath("/bin/sh")))
    assert found is not None and "libc.so.6" in found.needed


@pytest.mark.parametrize(
    ("soname", "says", "family"),
    [
        ("libmpi.so.40", OPENMPI, "openmpi 5.0.11"),
        ("libmpi.so.12", MPICH, "mpich 4.0.2"),
        ("libmpich.so.12", MPICH, "mpich 4.0.2"),
        ("libmpi_abi.so.1", MPICH, "mpich 4.0.2"),
        ("libmpi_abi.so.0", OPENMPI, "openmpi 5.0.11"),
    ],
)
def test_the_launcher_of_the_same_installation(
    tmp_path: Path, owner: Owner, soname: str, says: str, family: str
) -> None:
    prefix = tmp_path / "prefix"
    write_elf(prefix / "lib" / soname)
    write_launcher(prefix / "bin" / "mpiexec", says)
    program = write_elf(tmp_path / "program", (soname,), str(prefix / "lib"))
    elsewhere = write_launcher(tmp_path / "other" / "mpirun", OPENMPI.replace("5", "3"))
    found = mpi.find(program, owner, {"PATH": f"{elsewhere.parent}:/usr/bin:/bin"}, None)
    assert str(found) == family
    assert found.launcher == prefix / "bin" / "mpiexec"


def test_an_mpi_behind_a_binding_is_found(tmp_path: Path, owner: Owner) -> None:
    prefix = tmp_path / "prefix"
    write_elf(prefix / "lib" / "libmpi.so.40")
    write_elf(prefix / "lib" / "libmpi_mpifh.so.40", ("libmpi.so.40",), "$ORIGIN")
    write_launcher(prefix / "bin" / "mpirun", OPENMPI)
    program = write_elf(tmp_path / "program", ("libmpi_mpifh.so.40",), rpath=str(prefix / "lib"))
    assert mpi.find(program, owner, {}, None).launcher == prefix / "bin" / "mpirun"


def test_library_path_counts_before_runpath(tmp_path: Path, owner: Owner) -> None:
    for name in ("near", "far"):
        write_elf(tmp_path / name / "lib" / "libmpi.so.40")
        write_launcher(tmp_path / name / "bin" / "mpirun", OPENMPI)
    program = write_elf(tmp_path / "program", ("libmpi.so.40",), str(tmp_path / "far" / "lib"))
    found = mpi.find(program, owner, {"LD_LIBRARY_PATH": str(tmp_path / "near" / "lib")}, None)
    assert found.launcher == tmp_path / "near" / "bin" / "mpirun"


def test_a_script_gets_the_mpi_beside_it_then_that_of_path(tmp_path: Path, owner: Owner) -> None:
    write_launcher(tmp_path / "bin" / "mpirun", MPICH)
    script = write_launcher(tmp_path / "scripts" / "python", "")
    assert str(mpi.find(script, owner, {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, None)) == "mpich 4.0.2"
    write_launcher(tmp_path / "scripts" / "mpirun", OPENMPI)
    assert str(mpi.find(script, owner, {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, None)) == "openmpi 5.0.11"


def test_the_users_choice_counts_first(tmp_path: Path, owner: Owner) -> None:
    program = write_elf(tmp_path / "program", ("libmpi.so.12",), "/nowhere")
    launcher = write_launcher(tmp_path / "my" / "mpiexec", MPICH)
    assert mpi.find(program, owner, {}, "my/mpiexec").launcher == launcher
    assert mpi.find(program, owner, {"PATH": str(launcher.parent)}, "mpich").launcher == launcher


@pytest.mark.parametrize("choice", ["mpich", "my/mpiexec"])
def test_the_launcher_of_the_other_mpi_is_refused(tmp_path: Path, owner: Owner, choice: str) -> None:
    """It would run each rank as a job of one rank, with exit code 0."""
    program = write_elf(tmp_path / "program", ("libmpi.so.40",), "/nowhere")
    launcher = write_launcher(tmp_path / "my" / "mpiexec", MPICH)
    with pytest.raises(Refused, match="linked with libmpi.so.40 of openmpi") as caught:
        mpi.find(program, owner, {"PATH": str(launcher.parent)}, choice)
    assert caught.value.code is Code.UNSUPPORTED and "--mpi openmpi" in caught.value.next


def refusal(program: Path, owner: Owner, choice: str | None = None) -> Refused:
    with pytest.raises(Refused) as caught:
        mpi.find(program, owner, {"PATH": "/nowhere"}, choice)
    assert caught.value.what and caught.value.next
    return caught.value


def test_what_cannot_be_found_is_refused_with_the_next_step(tmp_path: Path, owner: Owner) -> None:
    program = write_elf(tmp_path / "a" / "b" / "program", ("libmpi_of_nobody.so.1",))
    assert refusal(program, owner).code is Code.NOT_FOUND
    assert refusal(program, owner, "lam").code is Code.USAGE
    assert refusal(program, owner, "mpich").code is Code.NOT_FOUND
    assert refusal(program, owner, "./nothing").code is Code.NOT_FOUND
    write_launcher(tmp_path / "other", "some other launcher 1.0\n")
    assert refusal(program, owner, "./other").code is Code.UNSUPPORTED
    missing = write_elf(tmp_path / "missing", ("libmpi.so.12",))
    if "libmpi.so.12" not in elf._cache():
        assert "which is not there" in refusal(missing, owner).what
    write_elf(tmp_path / "lonely" / "libmpi.so.40")
    lonely = write_elf(tmp_path / "lonely" / "program", ("libmpi.so.40",), "$ORIGIN")
    if not any((above / "bin" / "mpirun").exists() for above in tmp_path.parents):
        assert "no launcher belongs" in refusal(lonely, owner).what


def test_the_program_is_looked_up_as_a_shell_would(tmp_path: Path, owner: Owner) -> None:
    program = write_elf(tmp_path / "bin" / "solver")
    assert mpi.find_program("solver", owner, {"PATH": f"{tmp_path}/bin"}) == program
    assert mpi.find_program("bin/solver", owner, {}) == program
    with pytest.raises(Refused) as caught:
        mpi.find_program("slover", owner, {"PATH": f"{tmp_path}/bin"})
    assert caught.value.code is Code.NOT_FOUND
    program.chmod(0o644)
    with pytest.raises(Refused) as caught:
        mpi.find_program("./bin/solver", owner, {})
    assert caught.value.code is Code.PERMISSION and "chmod" in caught.value.next


@pytest.mark.parametrize("fails", ["sleep 5", "kill -9 $$"])
def test_a_launcher_that_did_not_answer_is_asked_again(
    tmp_path: Path, owner: Owner, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A busy machine is a reason to fail once, not as long as the daemon lives."""
    monkeypatch.setattr(mpi, "_VERSION_SECONDS", 0.5)
    launcher = write_launcher(tmp_path / "mpiexec", MPICH)
    script = launcher.read_text().partition("\n")[2]
    launcher.write_text(f"#!/bin/sh\n[ -e {tmp_path}/busy ] && {fails}\n{script}")
    program = write_elf(tmp_path / "program")
    (tmp_path / "busy").touch()
    assert refusal(program, owner, str(launcher)).code is Code.UNSUPPORTED
    (tmp_path / "busy").unlink()
    monkeypatch.setattr(mpi, "_VERSION_SECONDS", 20.0)
    assert str(mpi.find(program, owner, {}, str(launcher))) == "mpich 4.0.2"


# Root reads a user's program to find its MPI: whatever is in the file, it costs little and is no mistake of ours.


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
