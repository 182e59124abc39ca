"""Files of a job on their way to nodes that do not see them; the node is a directory of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, cast

import pytest
from pydantic import SecretStr

import waiting
from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import Instance, native_library, native_program
from wherry.job import launcher_command, preload, staging
from wherry.job.agent_client import AgentEndpoint, AgentError, Ended
from wherry.job.job_start import JobStart
from wherry.job.mpi import Family, Mpi
from wherry.job.node_agents import NodeAgents
from wherry.job.rank_map import rank_map
from wherry.model.inherited import Inherited
from wherry.model.job_request import Layout, Program
from wherry.model.owner import Owner
from wherry.model.records import Cluster, ClusterState, Node
from wherry.model.spec.cluster import ClusterSpec, Kind
from wherry.node.file_closure import FileSet, digest
from wherry.node.vm.image.root import FILES


class Root:
    """An endpoint whose node is a directory; `reason` is why it does not answer."""

    def __init__(self, top: Path, known: dict[str, str], reason: str = "") -> None:
        self.top, self.known, self.reason = top, known, reason

    def run(
        self,
        argv: Sequence[str],
        who: Owner,
        env: dict[str, str],
        seconds: float,
        data: IO[bytes] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Ended:
        check()
        if self.reason:
            raise AgentError(self.reason)
        if argv[1] == FILES:
            return Ended(0, json.dumps(self.known).encode(), b"")
        words = [str(self.top) if word == "/" else word for word in argv]
        done = subprocess.run(
            words, input=b"".join(iter(lambda: data.read(4096), b"")) if data else b"", capture_output=True, env=env
        )
        return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(uid=os.getuid(), gid=os.getgid(), home="/", cwd=str(tmp_path / "run"))


@pytest.fixture
def mpi(tmp_path: Path) -> Mpi:
    """An installation whose daemon is a file."""
    (tmp_path / "mpi" / "bin").mkdir(parents=True)
    (tmp_path / "mpi" / "bin" / "orted").write_text("daemon")
    return Mpi(Family.OPENMPI, (4, 1, 4), tmp_path / "mpi" / "bin" / "mpirun")


def cluster(*needs: str) -> Cluster:
    spec = ClusterSpec.model_validate({"kind": "vm", "name": "vm", "nodes": 1, "needs": needs})
    return Cluster(
        name="vm", spec=spec, state=ClusterState.RUNNING, network=1, subnet="10.77.1.0/24", head_host="a1",
        owner_uid=0, owner_gid=0, created=0.0,
    )  # fmt: skip


def node(memory: int = 64 << 20, index: int = 0, kind: Kind = "vm") -> Node:
    name = f"vm-{index}"
    return Node(name=name, cluster="vm", index=index, host="a1", address="", mac="", kind=kind, cpus=1, memory=memory)


def sent(root: Root, owner: Owner, mpi: Mpi, memory: int = 64 << 20, needs: tuple[str, ...] = ()) -> None:
    (Path(owner.cwd)).mkdir(exist_ok=True)
    files = staging.gather(cluster(*needs), [Path(shutil.which("env") or "")], owner, {}, ())
    staging.copy(cluster(*needs), [(node(memory), cast(AgentEndpoint, root))], files, owner, mpi, lambda: None)


def test_the_system_of_a_disk_stays_as_it_is(tmp_path: Path, owner: Owner, mpi: Mpi) -> None:
    """Files of a disk below /usr are kept, whatever is in them; other files are sent when they differ."""
    (tmp_path / "zz").write_text("new")
    Path(owner.cwd).mkdir()
    files = staging.gather(cluster(str(tmp_path / "zz")), [Path(shutil.which("env") or "")], owner, {}, ())
    library = next(name for name in files.files if name.startswith("/usr/lib"))
    there = {library: "another release's", str(tmp_path / "zz"): "old"}
    known = staging._with_system_files(files, there)
    assert known[library] == digest(library) and known[str(tmp_path / "zz")] == "old"
    assert all(name in known for name in files.links if name in ("/lib", "/lib64", "/bin"))


def test_only_machines_with_ranks_are_sent_files() -> None:
    nodes = [node(index=0, kind="container"), node(index=1), node(index=2)]
    assert [one.name for one in staging.targets((*nodes, nodes[1]))] == ["vm-1", "vm-2"]
    assert [one.name for one in staging.targets((nodes[0], nodes[1]))] == ["vm-1"]
    assert staging.targets((nodes[0],)) == []


def known(mpi: Mpi) -> dict[str, str]:
    daemon = str(mpi.prefix / "bin" / "orted")
    return {daemon: digest(daemon)}


def test_a_job_finds_its_files(tmp_path: Path, owner: Owner, mpi: Mpi) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "deck").write_text("1 2 3")
    root = Root(tmp_path / "node", known(mpi))
    root.top.mkdir()
    sent(root, owner, mpi, needs=(str(tmp_path / "input"),))
    assert os.access(f"{root.top}/{os.path.realpath(shutil.which('env') or '')}", os.X_OK)
    assert Path(f"{root.top}{tmp_path}/input/deck").read_text() == "1 2 3"
    assert Path(f"{root.top}{owner.cwd}").is_dir()
    sent(root, owner, mpi)  # again, over the files there


@pytest.mark.parametrize("size", [1, 5000, 10_000, 70_000])
def test_the_last_bytes_of_an_archive_arrive(tmp_path: Path, owner: Owner, mpi: Mpi, size: int) -> None:
    """Whatever a writer still buffers belongs to the archive too."""
    (tmp_path / "zz").write_bytes(b"x" * size)
    root = Root(tmp_path / "node", known(mpi))
    root.top.mkdir()
    sent(root, owner, mpi, needs=(str(tmp_path / "zz"),))
    assert Path(f"{root.top}{tmp_path}/zz").read_bytes() == b"x" * size


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"known": {}}, Code.UNSUPPORTED, "lack openmpi"),
        ({"reason": "no route"}, Code.UNREACHABLE, "no route"),
        ({"memory": 1 << 20}, Code.NO_CAPACITY, "do not fit"),
        ({"known": []}, Code.JOB_FAILED, "list of files in"),
        ({"top": Path("/nonexistent")}, Code.JOB_FAILED, "not copied to vm-0"),
    ],
)
def test_what_goes_wrong_is_told(
    tmp_path: Path, owner: Owner, mpi: Mpi, change: dict[str, Any], code: Code, text: str
) -> None:
    root = Root(tmp_path / "node", known(mpi))
    root.top.mkdir()
    memory = change.pop("memory", 64 << 20)
    vars(root).update(change)
    with pytest.raises(WherryError, match=text) as error:
        sent(root, owner, mpi, memory)
    assert error.value.code == code and isinstance(error.value, Refused | Failed)


def test_an_image_older_than_the_mpi_is_refused(tmp_path: Path, owner: Owner, mpi: Mpi) -> None:
    root = Root(tmp_path / "node", {name: "older" for name in known(mpi)})
    with pytest.raises(Refused, match="the image is older"):
        sent(root, owner, mpi)


def test_what_is_not_there_is_refused(tmp_path: Path, owner: Owner) -> None:
    Path(owner.cwd).mkdir()
    with pytest.raises(Refused, match="cannot be copied"):
        staging.gather(cluster("/not/there"), [Path("/usr/bin/env")], owner, {}, ())


@pytest.mark.parametrize("image", ["default", "/images/debian.qcow2"])
def test_copying_ends_when_the_operation_is_cancelled(tmp_path: Path, owner: Owner, mpi: Mpi, image: str) -> None:
    """Also while a node is waited for, whose sums or whose unpacking may take minutes."""
    root, asked = Root(tmp_path / "node", known(mpi)), list[str]()
    (tmp_path / "node").mkdir()
    (tmp_path / "run").mkdir()

    def check() -> None:
        asked.append(image)
        if len(asked) == 3:  # before a node, in the first question to it, in the second
            raise Failed(Code.CANCELLED, "run was cancelled")

    spec = ClusterSpec(name="vm", nodes=1, kind="vm", memory="256MiB", image=image)
    of = cluster().model_copy(update={"spec": spec})
    files = staging.gather(of, [Path("/usr/bin/env")], owner, {}, ())
    with pytest.raises(Failed, match="run was cancelled"):
        staging.copy(of, [(node(), cast(AgentEndpoint, root))], files, owner, mpi, check)


@pytest.mark.parametrize(("family", "version"), [(Family.OPENMPI, (4, 1, 4)), (Family.MPICH, (4, 0))])
def test_what_ld_preload_names_is_on_a_virtual_machine(
    family: Family,
    version: tuple[int, ...],
    tmp_path: Path,
    owner: Owner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a cluster with nodes of both kinds: ld.so complains to every process of a library that is not there."""
    (tmp_path / "mpi" / "bin").mkdir(parents=True)
    for daemon in ("orted", "hydra_pmi_proxy"):
        (tmp_path / "mpi" / "bin" / daemon).write_text("daemon")
    mpi = Mpi(family, version, tmp_path / "mpi" / "bin" / "mpirun")
    Path(owner.cwd).mkdir()
    libraries = preload.chosen(mpi, {}, whole=False)
    assert libraries
    nodes = (node(kind="container"), node(index=1))
    request = launcher_command.LaunchRequest(
        id="job-1", mpi=mpi, programs=(Program(argv=(shutil.which("env") or "",), ranks=6),),
        map=rank_map(nodes, 6, Layout()), nodes=nodes, owner=owner, env={}, inherited=Inherited(),
        head_address="10.77.1.254", subnet="10.77.1.0/24",
        keys={name: SecretStr("00" * 32) for name in ("vm-0", "vm-1")}, directory=tmp_path / "own",
        agent=native_program("wherry-rsh"), preloads=tuple(native_library(library.name) for library in libraries),
        launcher_preloads=tuple(native_library(library.name) for library in preload.for_launcher(mpi)),
    )  # fmt: skip
    name = str(mpi.prefix / "bin" / staging._DAEMONS[family][0])
    root = Root(tmp_path / "root", {name: digest(name)})
    root.top.mkdir()
    agents = NodeAgents(cast(Any, None), cast(Any, None))
    monkeypatch.setattr(agents, "endpoints", lambda _cluster, _nodes: [("vm-1", root)])
    start = JobStart(*[cast(Any, None)] * 3, agents, Instance("test"), tmp_path, native_library)
    start._stage(cluster(), request, lambda: None)
    words = launcher_command.plan(request).argv
    loaded = next(w for w in words if w.startswith(("LD_PRELOAD=", str(native_library(libraries[0].name)))))
    paths = loaded.removeprefix("LD_PRELOAD=").split()
    assert paths == [str(native_library(library.name)) for library in libraries]
    paths += launcher_command.plan(request).env.get("LD_PRELOAD", "").split()
    assert [path for path in paths if not (root.top / path.lstrip("/")).is_file()] == []


def test_a_file_that_ends_early_is_told(owner: Owner) -> None:
    files = FileSet()
    files.add("/sys/kernel/uevent_seqnum")  # claims a page, has some bytes
    with pytest.raises(Failed) as caught:
        staging._pack(files, owner, {})
    assert caught.value.why == "unexpected end of data"


# A job's files: found with bounds, and until the run is cancelled.


PROGRAM = Path("/usr/bin/env")


@pytest.fixture
def owner_in_run(tmp_path: Path) -> Owner:
    (tmp_path / "run").mkdir()
    return Owner(uid=os.getuid(), gid=os.getgid(), home="/", cwd=str(tmp_path / "run"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three files of 300 MiB without a block."""
    (tmp_path / "tree").mkdir()
    for name in "abc":
        (tmp_path / "tree" / name).touch()
        os.truncate(tmp_path / "tree" / name, 300 << 20)
    return tmp_path / "tree"


def cluster_that_needs(needs: Path, image: str = "default", served: tuple[str, ...] = ()) -> Cluster:
    spec = {"kind": "vm", "name": "vm", "nodes": 1, "needs": [str(needs)], "memory": "512MiB", "image": image}
    return Cluster.model_validate(
        {"name": "vm", "spec": spec, "state": "running", "network": 1, "subnet": "10.0.0.0/24", "head_host": "a",
         "owner_uid": 0, "owner_gid": 0, "created": 0, "served": served}
    )  # fmt: skip


def test_needs_that_no_node_can_hold_are_refused_while_they_are_found(tree: Path, owner_in_run: Owner) -> None:
    with pytest.raises(Refused) as refused:
        staging.gather(cluster_that_needs(tree), [PROGRAM], owner_in_run, {}, ())
    assert refused.value.code == Code.NO_CAPACITY and str(tree) in refused.value.what
    assert "512.0 MiB" in refused.value.why and refused.value.next.startswith(f"du -xhd1 {tree}")


def test_what_nodes_see_anyway_or_have_a_disk_for_counts_for_nothing(tree: Path, owner_in_run: Owner) -> None:
    served = staging.gather(cluster_that_needs(tree, served=(str(tree),)), [PROGRAM], owner_in_run, {}, ())
    assert str(tree / "a") not in served.files
    assert (
        str(tree / "a")
        in staging.gather(cluster_that_needs(tree, image="/i.qcow2"), [PROGRAM], owner_in_run, {}, ()).files
    )


@pytest.mark.parametrize("image", ["default", "/i.qcow2"])
def test_needs_of_too_many_entries_are_refused(
    tmp_path: Path, owner_in_run: Owner, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    """Entries that are copied nowhere, such as links to nothing, count, too."""
    monkeypatch.setattr(staging, "_ENTRIES", 5, raising=False)
    (tmp_path / "links").mkdir()
    for number in range(6):
        (tmp_path / "links" / str(number)).symlink_to("nothing")
    with pytest.raises(Refused, match="more than 5 files") as refused:
        staging.gather(cluster_that_needs(tmp_path / "links", image), [PROGRAM], owner_in_run, {}, ())
    assert refused.value.code == Code.NO_CAPACITY and str(tmp_path / "links") in refused.value.next


def test_a_deep_tree_is_taken_whole(tmp_path: Path) -> None:
    deep = f"{tmp_path}{'/d' * 1200}"
    subprocess.run(["mkdir", "-p", deep], check=True)
    files = FileSet()
    files.add_tree(tmp_path)
    subprocess.run(["rm", "-rf", f"{tmp_path}/d"], check=True)  # pytest cannot remove it
    assert deep in files.directories


@pytest.mark.parametrize("uid", [os.getuid(), 65534])
def test_finding_files_ends_when_the_run_is_cancelled(
    owner_in_run: Owner, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    """The run is asked for that with the daemon's rights, not with the owner's, which open no database."""
    if uid != os.getuid() and os.geteuid() != 0:
        pytest.skip("only root acts as another user")
    found, caller = list[str](), threading.current_thread()

    def slowly(self: staging._Bounded, name: str) -> None:
        found.append(name)
        assert self._end.wait(waiting.bound())
        look(self, name)

    def check() -> None:
        assert threading.current_thread() is caller
        if found:
            raise Failed(Code.CANCELLED, "run was cancelled")

    look = staging._Bounded.entry
    monkeypatch.setattr(staging._Bounded, "entry", slowly)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="wherry-") as top:
        Path(top).chmod(0o755)
        for name in "abc":
            Path(top, name).touch()
        who = owner_in_run.model_copy(update={"uid": uid, "gid": uid, "cwd": top})
        with pytest.raises(Failed, match="run was cancelled"):
            staging.gather(cluster_that_needs(Path(top)), [PROGRAM], who, {}, (), check)
    assert len(found) == 1


def test_packing_files_ends_when_the_run_is_cancelled(
    tree: Path, owner_in_run: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, written = FileSet(), list[str]()
    for name in "abc":
        os.truncate(tree / name, 1)
        files.add(tree / name)

    def entry(self: staging._Cancellable, name: str) -> None:
        written.append(name)
        assert self._end.wait(waiting.bound())
        look(self, name)

    def check() -> None:
        if written:
            raise Failed(Code.CANCELLED, "run was cancelled")

    look = staging._Cancellable.entry
    monkeypatch.setattr(staging._Cancellable, "entry", entry)
    with pytest.raises(Failed, match="run was cancelled"):
        staging._pack(files, owner_in_run, {}, check)
    assert len(written) == 1


# Files of a job that cannot be packed: the remedy names the full disk or the closed path.


OWNER = Owner(uid=0, gid=0, home="/", cwd="/")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "large").write_bytes(os.urandom(1 << 20))
    files = FileSet()
    files.add(tmp_path / "large")
    monkeypatch.setattr(staging, "_SCRATCH", str(tmp_path / "small"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "wherry", str(tmp_path / "small")], check=True)
    try:
        with pytest.raises(Failed) as refused:
            staging._pack(files, OWNER, {})
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "small")], check=True)
    assert refused.value.next == f"df -h {tmp_path / 'small'}, then repeat the command"


def test_an_error_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: FileSet, _path: object) -> str:
        raise OSError("the mount is gone")

    monkeypatch.setattr(FileSet, "add_program", broken)
    cluster = Cluster.model_validate(
        {"name": "vm", "spec": {"name": "vm", "nodes": 1}, "state": "running", "network": 1,
         "subnet": "10.0.0.0/24", "head_host": "a", "owner_uid": 0, "owner_gid": 0, "created": 0}
    )  # fmt: skip
    with pytest.raises(Refused) as refused:
        staging.gather(cluster, [Path("/bin/true")], OWNER, {}, ())
    assert (refused.value.why, refused.value.next) == ("the mount is gone", "ls -l /bin/true")
