"""Command lines, environments and files for both families; files that nodes can see; the files of the holder."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from rest_service import Service

from wherry.base.errors import Refused
from wherry.base.paths import native_library
from wherry.job import file_visibility, holder_files, launcher_command, preload
from wherry.job.mpi import Family, Mpi
from wherry.job.rank_map import node_slots, rank_map
from wherry.model.inherited import Inherited
from wherry.model.job_request import Layout, Program
from wherry.model.owner import Owner
from wherry.model.records import Cluster, ClusterState, Node
from wherry.model.spec.cluster import ClusterSpec

OWNER = Owner(uid=1000, gid=100, groups=(100, 4), home="/home/u", cwd="/home/u/case")


def nodes(count: int) -> tuple[Node, ...]:
    return tuple(
        Node(name=f"n-{i}", cluster="n", index=i, host="a1", address=f"10.77.1.{i + 1}", mac="", cpus=1, memory=1 << 28)
        for i in range(count)
    )


def request(
    family: Family,
    version: tuple[int, ...],
    ranks: int = 5,
    owner: Owner = OWNER,
    ranks_per_cpu: float = 0.0,
    whole: bool = False,
    layout: Layout | None = None,
    **env: str,
) -> launcher_command.LaunchRequest:
    mpi = Mpi(family, version, Path("/opt/mpi/bin/mpirun"))
    return launcher_command.LaunchRequest(
        id="job-1",
        mpi=mpi,
        programs=(Program(argv=("/home/u/case/solver", "in put"), ranks=ranks),),
        map=rank_map(nodes(4), ranks, layout or Layout()),
        nodes=nodes(4),
        owner=owner,
        env=env,
        inherited=Inherited(umask=0o77, limits={"stack": (8 << 20, None)}),
        head_address="10.77.1.254",
        subnet="10.77.1.0/24",
        keys={node.name: SecretStr(f"{node.index:02x}" * 32) for node in nodes(4)},
        directory=Path("/var/lib/wherry/main/jobs/job-1/own"),
        agent=Path("/opt/wherry-rsh"),
        preloads=tuple(Path("/opt") / library.name for library in preload.chosen(mpi, env, whole)),
        ranks_per_cpu=ranks_per_cpu,
        whole=whole,
        bind_to=layout.bind_to if layout else "none",
    )


@given(st.integers(1, 50), st.integers(1, 500))
def test_every_rank_sits_once_and_evenly(count: int, ranks: int) -> None:
    found = node_slots(rank_map(nodes(count), ranks, Layout()))
    shares = [seat.slots for seat in found]
    assert sum(shares) == ranks
    assert max(shares) - min(shares) <= 1
    assert len(found) == min(count, ranks)


def test_open_mpi_4() -> None:
    plan = launcher_command.plan(request(Family.OPENMPI, (4, 1, 4), LANG="C"))
    assert plan.argv[0] == "/opt/mpi/bin/mpirun" and plan.argv[plan.argv.index("-n") + 1] == "5"
    assert plan.argv[-2:] == ["/home/u/case/solver", "in put"]
    assert plan.files["hosts"].splitlines()[0] == "10.77.1.1 slots=2"
    assert plan.env["OMPI_MCA_plm_rsh_agent"] == "/opt/wherry-rsh"
    assert plan.env["OMPI_MCA_btl"] == "tcp,self"
    assert plan.env["OMPI_MCA_oob_tcp_if_include"] == "10.77.1.0/24"
    assert "OMPI_ALLOW_RUN_AS_ROOT" not in plan.env
    assert plan.env["LANG"] == "C"


def test_ranks_of_one_virtual_machine_share_its_memory() -> None:
    for version, name in (((4, 1, 4), "vader"), ((5, 0, 11), "sm")):
        plan = launcher_command.plan(replace(request(Family.OPENMPI, version), whole=True))
        assert plan.env["OMPI_MCA_btl"] == f"{name},tcp,self"
    assert launcher_command.plan(replace(request(Family.MPICH, (4, 0, 2)), whole=True)).env["MPIR_CVAR_NOLOCAL"] == "0"


@pytest.mark.parametrize(("family", "version"), [(Family.OPENMPI, (4, 1, 4)), (Family.MPICH, (5, 0))])
def test_waiting_ranks_of_containers_sleep_until_their_next_message(family: Family, version: tuple[int, ...]) -> None:
    words = " ".join(launcher_command.plan(request(family, version, LD_PRELOAD="theirs.so")).argv)
    names = ("remap", "memory", "wait", "mpi")
    expected = f"LD_PRELOAD={' '.join(f'/opt/libwherry-{name}.so' for name in names)} theirs.so"
    assert expected in words.replace("LD_PRELOAD /", "LD_PRELOAD=/")
    in_machines = " ".join(launcher_command.plan(request(family, version, whole=True)).argv)
    assert "libwherry-wait.so" not in in_machines, "ranks of one machine talk through its memory"
    assert "libwherry-remap.so" not in in_machines, "nothing tracks their processes"


def test_waiting_ranks_of_virtual_machines_yield_where_there_are_more_of_them_than_processors() -> None:
    def planned(ranks_per_cpu: float = 2.5, whole: bool = True, **env: str) -> launcher_command.LaunchPlan:
        return launcher_command.plan(
            request(Family.OPENMPI, (4, 1, 4), ranks_per_cpu=ranks_per_cpu, whole=whole, **env)
        )

    name = preload.YIELD
    assert planned().env[name] == "1"
    assert name not in planned(ranks_per_cpu=1.0).env and name not in planned(whole=False).env
    for whole in (True, False):
        plan = planned(whole=whole, **{name: "0"})
        assert plan.env[name] == "0" and "libwherry-wait.so" not in " ".join(plan.argv), "the user's word counts"


def test_ranks_are_told_their_sites_only_if_collectives_are_to_know_them() -> None:
    told = replace(request(Family.OPENMPI, (4, 1, 4), ranks=5), sites={"a1": "tokyo"})
    assert f"env {launcher_command.SITES}=0x5" in launcher_command.plan(told).files["job"].split("\0")
    far = tuple(node.model_copy(update={"host": "b1"}) if node.index in (1, 2) else node for node in told.map)
    told = replace(told, map=far, sites={"a1": "tokyo", "b1": "kyoto"})
    assert f"env {launcher_command.SITES}=0x2,1x2,0x1" in launcher_command.plan(told).files["job"].split("\0")
    assert launcher_command.SITES not in launcher_command.plan(request(Family.MPICH, (4, 0, 2))).files["job"]


def test_deterministic_ranks_have_a_library_that_knows_no_nodes() -> None:
    for version in ((4, 1, 4), (5, 0, 0)):
        plain = launcher_command.plan(request(Family.OPENMPI, version)).env
        asked = replace(request(Family.OPENMPI, version), sites={"a1": "a"}, deterministic=True)
        plan = launcher_command.plan(asked)
        for name, value in launcher_command.BY_RANKS.items():
            assert plan.env[f"OMPI_MCA_{name}"] == value and f"OMPI_MCA_{name}" not in plain
        assert f"env {launcher_command.IN_ORDER}=1" in plan.files["job"].split("\0")
    for whole, deterministic, expected in ((True, False, "0"), (True, True, "1"), (False, True, "1")):
        asked = replace(request(Family.MPICH, (4, 0, 2), whole=whole), deterministic=deterministic)
        plan = launcher_command.plan(asked)
        assert f"env MPIR_CVAR_NOLOCAL={expected}" in plan.files["job"].split("\0")
        assert launcher_command.IN_ORDER not in plan.files["job"], "no collectives by sites"


def test_a_plain_job_has_only_libraries_without_which_it_would_not_end_or_not_move() -> None:
    mpi = Mpi(Family.MPICH, (4, 0, 2), Path("/opt/mpi/bin/mpirun"))
    names = [library.name for library in preload.chosen(mpi, {}, whole=False)]
    assert names[-1] == "libwherry-mpi.so" and len(names) == 5, "the counting library is the last one"
    plain = [library.name for library in preload.chosen(mpi, {}, whole=False, plain=True)]
    assert plain == ["libwherry-finalize.so", "libwherry-remap.so", "libwherry-memory.so"]
    mpi = Mpi(Family.OPENMPI, (5, 0), mpi.launcher)
    assert not preload.chosen(mpi, {}, whole=True, plain=True), "virtual machines need none of them"
    assert [library.name for library in preload.chosen(mpi, {}, whole=True)] == ["libwherry-mpi.so"]


def test_waiting_ranks_of_a_plain_job_yield_as_open_mpi_would_have_them_on_one_machine() -> None:
    crowded = replace(request(Family.OPENMPI, (4, 1, 4), ranks_per_cpu=2.5), plain=True, preloads=())
    assert launcher_command.plan(crowded).env[preload.YIELD] == "1"
    assert preload.YIELD not in launcher_command.plan(replace(crowded, ranks_per_cpu=1.0)).env


def test_address_sanitizer_is_told_that_libraries_were_loaded_before_it() -> None:
    def told(**more: str) -> list[str]:
        lines = launcher_command.plan(request(Family.OPENMPI, (4, 1, 4), **more)).files["job"].split("\0")
        return [line for line in lines if "ASAN_OPTIONS" in line]

    assert told() == ["env ASAN_OPTIONS=verify_asan_link_order=0"]
    assert told(ASAN_OPTIONS="abort_on_error=1") == ["env ASAN_OPTIONS=verify_asan_link_order=0:abort_on_error=1"]
    bare = replace(request(Family.OPENMPI, (4, 1, 4)), preloads=())
    assert "ASAN_OPTIONS" not in launcher_command.plan(bare).files["job"]


def addresses(text: str) -> list[str]:
    return [line.split()[0].split(":")[0][-1] for line in text.splitlines()]


def test_ranks_by_turns_have_a_line_each() -> None:
    turns = Layout(map_by="node", bind_to="core")
    plan = launcher_command.plan(request(Family.OPENMPI, (4, 1, 4), layout=turns))
    assert plan.argv[1:5] == ["--map-by", "seq:OVERSUBSCRIBE", "--bind-to", "core:overload-allowed"]
    assert addresses(plan.files["hosts"]) == ["1", "2", "3", "4", "1"]
    plan = launcher_command.plan(request(Family.MPICH, (4, 0, 2), layout=turns))
    assert plan.argv[plan.argv.index("-bind-to") + 1] == "core"
    assert plan.files["hosts"].splitlines() == [f"10.77.1.{place}:1" for place in "12341"]


@pytest.mark.parametrize(("family", "version"), [(Family.OPENMPI, (4, 1, 4)), (Family.MPICH, (4, 0, 2))])
def test_several_programs_and_words_of_the_launcher(family: Family, version: tuple[int, ...]) -> None:
    programs = (Program(argv=("/a", "x"), ranks=2), Program(argv=("/b",), ranks=3))
    one = request(family, version)
    plan = launcher_command.plan(replace(one, programs=programs, timeout=9.2, launcher_args=("--verbose", "-q")))
    assert plan.argv.index("--verbose") + 1 == plan.argv.index("-q") < plan.argv.index("-n")
    first, second = plan.argv.index("/a"), plan.argv.index("/b")
    assert plan.argv[first : first + 3] == ["/a", "x", ":"] and plan.argv[first + 3 : first + 5] == ["-n", "3"]
    assert second == len(plan.argv) - 1
    if family is Family.OPENMPI:
        assert plan.argv[plan.argv.index("--timeout") + 1] == "10"
        assert addresses(plan.files["hosts"] + plan.files["hosts1"]) == ["1", "1", "2", "3", "4"]
        assert sum(word.startswith("LD_PRELOAD=") for word in plan.argv) == 2, "-x is a program's"
    else:
        assert plan.env["MPIEXEC_TIMEOUT"] == "10"


def test_open_mpi_5_has_the_nodes_of_several_programs_in_words() -> None:
    """It takes two host files for one name."""
    programs = (Program(argv=("/a",), ranks=2), Program(argv=("/b",), ranks=3))
    argv = launcher_command.plan(replace(request(Family.OPENMPI, (5, 0, 11)), programs=programs)).argv
    hosts = [argv[at + 1] for at, word in enumerate(argv) if word == "--host"]
    assert hosts == ["10.77.1.1,10.77.1.1", "10.77.1.2,10.77.1.3,10.77.1.4"] and "--hostfile" not in argv


def test_open_mpi_5_speaks_to_prrte_and_root_is_allowed() -> None:
    root = OWNER.model_copy(update={"uid": 0})
    plan = launcher_command.plan(request(Family.OPENMPI, (5, 0, 11), owner=root))
    assert plan.env["PRTE_MCA_plm_ssh_agent"] == "/opt/wherry-rsh"
    assert not [name for name in plan.env if name.startswith("OMPI_MCA_plm")]
    assert plan.env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def test_mpich_and_its_library_for_the_end() -> None:
    plan = launcher_command.plan(request(Family.MPICH, (4, 0, 2), LD_PRELOAD="/x.so"))
    assert plan.argv[plan.argv.index("-localhost") + 1] == "10.77.1.254"
    libraries = (
        "/opt/libwherry-finalize.so /opt/libwherry-remap.so /opt/libwherry-memory.so /opt/libwherry-wait.so "
        "/opt/libwherry-mpi.so /x.so"
    )
    assert plan.argv[plan.argv.index("LD_PRELOAD") + 1] == libraries
    assert plan.files["hosts"].splitlines() == ["10.77.1.1:2", "10.77.1.2:1", "10.77.1.3:1", "10.77.1.4:1"]
    assert "finalize" not in " ".join(launcher_command.plan(request(Family.MPICH, (5, 0, 2))).argv)


def test_every_library_of_the_table_is_built() -> None:
    assert all(native_library(library.name).is_file() and library.purpose for library in preload.LIBRARIES)


def test_the_job_file_is_what_the_agent_reads() -> None:
    lines = launcher_command.plan(request(Family.MPICH, (5, 0, 2), A="1 2", B="x\ny")).files["job"].split("\0")
    assert "user 1000 100 100,4" in lines
    assert "cwd /home/u/case" in lines
    assert f"node n-3 10.77.1.4 7310 {'03' * 32}" in lines
    assert "env A=1 2" in lines
    assert "env WHERRY_JOB_ID=job-1" in lines
    assert "env B=x\ny" in lines
    assert "inherited umask=63,stack=8388608:unlimited" in lines
    assert all(line.split(" ")[0] in ("user", "cwd", "inherited", "node", "env", "") for line in lines)


@pytest.mark.parametrize(("family", "version"), [(Family.OPENMPI, (4, 1, 4)), (Family.MPICH, (4, 0, 2))])
def test_variables_that_a_shell_would_drop_are_packed(family: Family, version: tuple[int, ...]) -> None:
    plan = launcher_command.plan(request(family, version, **{"BASH_FUNC_f%%": "() {\n}", "a.b": "1", "OWN": "1"}))
    entries = plan.files["job"].split("\0")
    assert "env WHERRY_ENV_0=BASH_FUNC_f%%=() {\n}" in entries and "env WHERRY_ENV_1=a.b=1" in entries
    assert "env OWN=1" in entries and not any(one.startswith(("env BASH_FUNC", "env a.b")) for one in entries)
    at = plan.argv.index("--environment")
    assert plan.argv[at - 1 : at + 3] == ["/opt/wherry-rsh", "--environment", "/home/u/case/solver", "in put"]
    assert "--environment" not in launcher_command.plan(request(family, version, OWN="1")).argv


@pytest.mark.parametrize(("family", "version"), [(Family.OPENMPI, (4, 1, 4)), (Family.MPICH, (4, 0, 2))])
def test_limits_that_would_end_a_launchers_daemon_are_set_by_ranks(family: Family, version: tuple[int, ...]) -> None:
    narrow = Inherited(limits={"as": (60 << 20, None), "core": (0, 0), "nofile": (20, 4096), "stack": (None, None)})
    plan = launcher_command.plan(replace(request(family, version), inherited=narrow))
    entries = plan.files["job"].split("\0")
    wanted = "core=0:0,nofile=1024:4096,stack=unlimited:unlimited"
    assert f"inherited umask=18,as=unlimited:unlimited,{wanted}" in entries
    assert f"env WHERRY_LIMITS={narrow.text}" in entries and "--environment" in plan.argv


@pytest.mark.parametrize("version", [(4, 1, 4), (5, 0, 7)])
def test_libraries_for_the_launcher_are_in_its_environment_and_its_daemons(version: tuple[int, ...]) -> None:
    mpi = Mpi(Family.OPENMPI, version, Path("/opt/mpi/bin/mpirun"))
    names = [library.name for library in preload.for_launcher(mpi)]
    given_ = replace(
        request(mpi.family, mpi.version, LD_PRELOAD="theirs.so"), launcher_preloads=tuple(map(Path, names))
    )
    plan = launcher_command.plan(given_)
    assert plan.env["LD_PRELOAD"] == "libwherry-output.so theirs.so"
    assert "env LD_PRELOAD=libwherry-output.so theirs.so" in plan.files["job"].split("\0")
    assert "libwherry-output.so" not in " ".join(plan.argv) and given_.ours[-1] == Path("libwherry-output.so")
    bounded = "env PMIX_MCA_pmix_max_iof_cache=16" in plan.files["job"].split("\0")
    assert bounded == (version[0] == 5), "Open MPI 5 keeps the output, also in its daemons on nodes"
    assert not preload.for_launcher(Mpi(Family.MPICH, (4, 0, 2), mpi.launcher))


def test_ranks_get_the_users_variables_only() -> None:
    given_ = {
        "PATH": "/p",
        "TMPDIR": "/x",
        "WHERRY_URL": "u",
        "SLURM_JOB_ID": "1",
        "BASH_FUNC_f%%": "() {\n}",
        "OWN": "1",
    }
    found = launcher_command.rank_environment(given_, OWNER, "job-1")
    ours = {"HOME": "/home/u", "OMP_NUM_THREADS": "1", "WHERRY_JOB_ID": "job-1"}
    assert found == {"PATH": "/p", "BASH_FUNC_f%%": "() {\n}", "OWN": "1", **ours}
    plan = launcher_command.plan(request(Family.MPICH, (5, 0, 2), **given_))
    assert "TMPDIR" in plan.env and "env TMPDIR" not in plan.files["job"]
    assert "WHERRY_JOB=" not in plan.files["job"]


CLUSTER = Cluster(
    name="n",
    spec=ClusterSpec(name="n", nodes=1),
    state=ClusterState.RUNNING,
    network=1,
    subnet="10.77.1.0/24",
    head_host="a1",
    owner_uid=0,
    owner_gid=0,
    binds=("/root", "/tmp/case"),
    created=0.0,
)


@pytest.mark.parametrize("path", ["/usr/bin/x", "/tmp/case/a/x", "/root/x", "/tmpfs/x"])
def test_what_nodes_see(path: str) -> None:
    file_visibility.require_visible(Path(path), "the program", CLUSTER)


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("/tmp/x", "a directory that is not below /tmp"),
        ("/tmp/case2/x", "wherry up from /tmp/case2"),
        ("/run/x", "a directory that is not below /run"),
        ("/dev/shm/x", "a directory that is not below /dev"),
    ],
)
def test_what_nodes_do_not_see(path: str, remedy: str) -> None:
    """The remedy helps: /tmp itself is never bound into a node, and nothing below /dev."""
    with pytest.raises(Refused, match="do not see the program") as refused:
        file_visibility.require_visible(Path(path), "the program", CLUSTER)
    assert remedy in refused.value.next


def test_an_agent_below_a_closed_directory_is_copied_once(tmp_path: Path) -> None:
    source = tmp_path / "closed" / "wherry-rsh"
    source.parent.mkdir(mode=0o700)
    source.write_bytes(b"agent")
    copy = file_visibility.world_readable(source, OWNER, tmp_path / "bin")
    assert copy != source and copy.read_bytes() == b"agent" and copy.stat().st_mode & 0o777 == 0o755
    assert file_visibility.world_readable(source, OWNER, tmp_path / "bin") == copy
    source.write_bytes(b"newer")
    assert file_visibility.world_readable(source, OWNER, tmp_path / "bin") != copy and copy.read_bytes() == b"agent"


def test_copies_of_builds_go_when_no_process_uses_them(tmp_path: Path) -> None:
    """A copy that a process runs, has in its environment or has mapped stays."""
    source, store, copies = tmp_path / "closed" / "wherry-rsh", tmp_path / "bin", list[Path]()
    source.parent.mkdir(mode=0o700)
    for word in (b"run", b"named", b"mapped", b"old"):
        source.write_bytes(b"#!/bin/sh\nread line # " + word)
        copies.append(file_visibility.world_readable(source, OWNER, store))
    ran, named, mapped, old = copies
    words: list[tuple[list[str], dict[str, str]]] = [
        ([str(ran)], {}),
        (["/bin/sh", "-c", "read line"], {"LD_PRELOAD_LATER": str(named)}),
    ]
    running = [subprocess.Popen(argv, env=env, stdin=subprocess.PIPE) for argv, env in words]
    try:
        with open(mapped, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
            assert file_visibility.drop_unused(store) == [old.parent.name]
    finally:
        for one in running:
            one.communicate(b"\n")
    assert [one.exists() for one in copies] == [True, True, True, False]
    assert sorted(file_visibility.drop_unused(store)) == sorted(one.parent.name for one in (ran, named, mapped))
    assert file_visibility.drop_unused(tmp_path / "none") == [] and not list(store.iterdir())


def test_the_next_daemon_removes_them(service: Service) -> None:
    old = service.context.instance.state / "bin" / "0123456789ab"
    old.mkdir(parents=True)
    service.context.recover()
    assert not old.exists()


@pytest.mark.parametrize("name", ["a checkout", "a:checkout"])
def test_a_path_that_launchers_would_split_is_copied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library in LD_PRELOAD, an agent that mpirun starts: both are split at blanks."""
    monkeypatch.setattr(file_visibility, "_PRIVATE", ())  # where tests write is below /tmp, which is copied anyway
    with tempfile.TemporaryDirectory() as directory:
        source, store = Path(directory) / name / "lib.so", Path(directory) / "bin"
        source.parent.mkdir()
        source.write_bytes(b"library")
        for place in (source.parent, source):
            place.chmod(0o755)
        root = OWNER.model_copy(update={"uid": 0})
        copy = file_visibility.world_readable(source, root, store)
        assert copy.is_relative_to(store) and copy.read_bytes() == b"library"
        plain = source.rename(Path(directory) / "lib.so")
        assert file_visibility.world_readable(plain, root, store) == plain


def test_jobs_that_start_at_the_same_time_copy_the_agent_whole(tmp_path: Path) -> None:
    source = tmp_path / "closed" / "wherry-rsh"
    source.parent.mkdir(mode=0o700)
    content = bytes(range(256)) * (1 << 15)
    source.write_bytes(content)
    with ThreadPoolExecutor(8) as pool:
        copies = [pool.submit(file_visibility.world_readable, source, OWNER, tmp_path / "bin") for _ in range(8)]
        assert {one.result().read_bytes() == content for one in copies} == {True}
    assert [path.name for path in copies[0].result().parent.iterdir()] == ["wherry-rsh"]


def frame(stream: int, seconds: int, data: bytes) -> bytes:
    return struct.pack(">BQI", stream, seconds * 10**9, len(data)) + data


def test_output_is_read_in_whole_frames(tmp_path: Path) -> None:
    frames = [frame(1, 5, b"one\n"), frame(2, 6, b"two\n"), frame(1, 7, b"three\n")]
    path = tmp_path / "output"
    assert holder_files.read_output(tmp_path, 0, 100) == ([], 0)
    path.write_bytes(b"".join(frames)[:-3])
    chunks, offset = holder_files.read_output(tmp_path, 0, 1 << 20)
    assert chunks == [("stdout", 5.0, b"one\n"), ("stderr", 6.0, b"two\n")]
    assert holder_files.read_output(tmp_path, offset, 100) == ([], offset)
    path.write_bytes(b"".join(frames))
    assert holder_files.read_output(tmp_path, offset, 100)[0] == [("stdout", 7.0, b"three\n")]
    assert len(holder_files.read_output(tmp_path, 0, 1)[0]) == 1
    with pytest.raises(Refused, match="offset 3"):
        holder_files.read_output(tmp_path, 3, 100)
    assert holder_files.read_output(tmp_path, 1 << 70, 100) == ([], 1 << 70)


def test_open_mpis_harmless_line_is_left_out(tmp_path: Path) -> None:
    noise = b"[host:07939] plm:rsh: Warning: setpgid(7951,7951) failed in parent with errno=Permission denied(13)\n"
    (tmp_path / "output").write_bytes(frame(2, 1, noise) + frame(2, 2, b"a\n" + noise + b"b\n"))
    assert holder_files.read_output(tmp_path, 0, 1 << 20)[0] == [("stderr", 2.0, b"a\nb\n")]


@pytest.mark.parametrize(
    ("text", "code"), [("exit 7\nended 5000000000\n", 7), ("signal 9\nended 5000000000\nlost 12\n", 137)]
)
def test_exit_file(tmp_path: Path, text: str, code: int) -> None:
    assert holder_files.read_exit(tmp_path) is None
    (tmp_path / "exit").write_text(text)
    assert holder_files.read_exit(tmp_path) == holder_files.Exit(code, 5.0, 12 if "lost" in text else 0)


def test_a_holder_is_known_by_its_start_time(tmp_path: Path) -> None:
    start = holder_files.start_time(os.getpid())
    assert start is not None
    assert holder_files.read_holder(tmp_path) is None
    (tmp_path / "pid").write_text(f"{os.getpid()} {start}\n")
    holder = holder_files.read_holder(tmp_path)
    assert holder is not None and holder.alive()
    assert not holder_files.Holder(os.getpid(), start - 1).alive()


@pytest.mark.parametrize("layout", [Layout(), Layout(rankfile=("n-2", "n-0", "n-2"))])
def test_spawned_processes_may_go_to_nodes_without_ranks(layout: Layout) -> None:
    asked = replace(request(Family.OPENMPI, (4, 1, 4), 3, layout=layout), spawned_on=nodes(4))
    plan = launcher_command.plan(asked)
    with_ranks = launcher_command.plan(replace(asked, spawned_on=())).files["hosts"]
    others = [node.address for node in nodes(4) if node not in asked.map]
    assert plan.files["hosts"] == with_ranks + "".join(f"{address} slots=0\n" for address in others)
    assert "env WHERRY_PLACE_SPAWNED=1\0" in plan.files["job"]
    for family, version in ((Family.OPENMPI, (4, 1, 4)), (Family.MPICH, (5, 0))):
        plain = launcher_command.plan(request(family, version, WHERRY_PLACE_SPAWNED="1"))
        assert "PLACE_SPAWNED" not in plain.files["job"] and "slots=0" not in plain.files["hosts"]


def test_hydra_is_told_of_the_environment_for_each_program() -> None:
    """Told once for all, hydra 5 spawns no process on a node that has some."""
    asked = request(Family.MPICH, (5, 0))
    argv = launcher_command.plan(replace(asked, programs=asked.programs * 2, map=asked.map * 2)).argv
    assert argv.count("-envnone") == 2 and "-genvnone" not in argv
    assert argv[argv.index("TMPDIR") + 1] == "/tmp", "the launcher's own would reach spawned processes"
