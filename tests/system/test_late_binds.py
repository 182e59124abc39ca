"""Directories of the user that a job needs and running nodes lack: bound by `wherry run`, kept by moves and repairs."""

from __future__ import annotations

import os
import pty
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import SECONDS, WHERRY, RealInstance, eventually, real_instance, ring_program

from wherry.cluster.lookup import find_cluster
from wherry.fabric.cgroup import Cgroup
from wherry.node.container import hot_bind
from wherry.node.container.criu.probe import find as find_criu
from wherry.store.store import Store

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
LAUNCHERS = {"openmpi": "/usr/bin/mpirun.openmpi", "mpich": "/usr/bin/mpiexec.mpich"}
AS_NOBODY = {"SUDO_UID": "65534", "SUDO_GID": "65534"}


@pytest.fixture(scope="module")
def wherry() -> Iterator[RealInstance]:
    """An instance with its fabric."""
    with real_instance("tbnd", WHERRY_FAULTS="1") as created:
        yield created


@pytest.fixture(params=list(LAUNCHERS))
def flavour(request: pytest.FixtureRequest) -> str:
    """Each installed MPI."""
    flavour = str(request.param)
    if not Path(LAUNCHERS[flavour]).exists():
        pytest.skip(f"{LAUNCHERS[flavour]} is not installed")
    return flavour


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory below /tmp in which nobody typed `wherry up`."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="wherry-work-") as name:
        path = Path(name)
        path.chmod(0o777)
        yield path


def lose(wherry: RealInstance, node: str) -> None:
    """Kills a node, and waits until that was noticed."""
    Cgroup(f"{wherry.instance.prefix}/{wherry.hosts_of(node.rpartition('-')[0])[node]}/{node}").kill()

    def state() -> str:
        return str(wherry.json("node", "show", node)["node"]["state"])

    assert eventually(state, "lost") == "lost"


def test_a_job_runs_from_a_directory_that_nodes_lacked(wherry: RealInstance, flavour: str, work: Path) -> None:
    """It is there after a move, after a repair and in new nodes, too, and `down` leaves no mount."""
    there = RealInstance(wherry.instance.name, work)
    wherry.up("late", 2)
    others = [work / "a" / "b", work / "a.b"]  # their names in CRIU must differ, too
    for directory in others:
        directory.mkdir(parents=True)
    program = ring_program(flavour, others[0])
    words = ("run", "late", "-n", "2", "--mpi", flavour, "--", program, "--seconds", "1")
    for directory in others:
        done = RealInstance(wherry.instance.name, directory)(*words)
        assert done.returncode == 0, done.stderr
    assert wherry.json("status", "late")["clusters"][0]["binds"][-2:] == list(map(str, others))
    script = f"test -r {program} && touch $(hostname).$0 && grep -c {work} /proc/self/mountinfo"

    def writes(mark: str, nodes: int = 2) -> None:
        there.directory = others[1]
        done = there("run", "late", "-n", str(nodes), "--mpi", flavour, "--", "/bin/sh", "-c", script, mark)
        assert done.returncode == 0 and done.stdout.split() == ["2"] * nodes, (done.stdout, done.stderr)
        assert {path.name for path in others[1].glob(f"*.{mark}")} == {f"late-{n}.{mark}" for n in range(nodes)}

    writes("bound")
    if find_criu().works:
        there.directory = others[0]
        with there.ring("late", flavour, ranks=2) as ring:
            for node, source in wherry.hosts_of("late").items():
                wherry.move(node, next(host for host in wherry.hosts() if host != source))
            assert ring.running(), ring.output_tail()
            ring.result()
        writes("moved")
    lose(wherry, "late-1")
    wherry.up("late", 3)
    writes("repaired", 3)
    done = there(*words)
    assert done.returncode == 0, done.stderr
    wherry.json("down", "late")
    left = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(work) in line]
    assert left == [] and [point for point in wherry.mounts() if "late" in point] == []


def test_a_terminal_is_told_what_was_bound(wherry: RealInstance, work: Path) -> None:
    """One line, and only by the job that needed it."""
    wherry.up("shown", 2)
    told = []
    for _ in range(2):
        ours, theirs = pty.openpty()
        done = subprocess.run(
            [WHERRY, "run", "shown", "-n", "1", "--", "/bin/true"],
            cwd=work, env=wherry.environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        os.close(theirs)
        text = b""
        try:
            while more := os.read(ours, 4096):
                text += more
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        assert done.returncode == 0, text
        told.append([line for line in text.decode().splitlines() if "bound" in line])
    assert told == [[f"{work} is bound into 2 nodes of shown, writable"], []]
    wherry.json("down", "shown")


def test_what_its_owner_may_not_read_is_not_bound(wherry: RealInstance, work: Path) -> None:
    """Neither is a directory that running nodes have of their own, nor a directory that would hide a bound one."""
    mine = RealInstance(wherry.instance.name, wherry.directory, **AS_NOBODY)
    mine.up("mine", 1)
    for name, mode in (("closed", 0o711), ("open", 0o755), ("open/below", 0o755)):
        (work / name).mkdir()
        (work / name).chmod(mode)
    (work / "closed" / "program").write_text("#!/bin/sh\necho ran\n")
    (work / "closed" / "program").chmod(0o755)

    def run(directory: Path, *program: str) -> tuple[int, str]:
        done = RealInstance(wherry.instance.name, directory, **AS_NOBODY)("run", "mine", "-n", "1", "--", *program)
        return done.returncode, done.stdout + done.stderr

    code, said = run(wherry.directory, str(work / "closed" / "program"))
    assert code == 4 and f"{work}/closed cannot be bound into the nodes of mine" in said and "may not read it" in said
    # The nodes' user makes the name of the directory to be bound a link, in its own /tmp.
    code, said = run(wherry.directory, "/bin/ln", "-s", "/etc", str(work))
    assert code == 0, said
    code, said = run(work / "open", "/bin/true")
    assert code == 1 and f"{work}/open was not bound into the nodes of mine" in said and "of its own" in said
    code, said = run(wherry.directory, "/bin/sh", "-c", f"rm {work} && cat /proc/self/mountinfo")
    assert code == 0 and str(work) not in said
    assert str(work / "open") not in wherry.json("status", "mine")["clusters"][0]["binds"]
    assert run(work / "open" / "below", "/bin/true")[0] == 0
    code, said = run(work / "open", "/bin/true")
    assert code == 4 and f"it would hide {work}/open/below" in said and "next: wherry down mine" in said
    wherry.json("down", "mine")


@pytest.mark.skipif(not find_criu().works, reason="no CRIU works here")
def test_nothing_is_bound_while_a_node_moves(wherry: RealInstance, work: Path) -> None:
    """The job is refused, naming the node; it runs when that is over, and all nodes have the directory then."""
    wherry.up("busy", 2)
    there, source = RealInstance(wherry.instance.name, work), wherry.hosts_of("busy")["busy-0"]
    target = next(host for host in wherry.hosts() if host != source)
    words = ("run", "busy", "-n", "2", "--", "/bin/sh", "-c", "touch $(hostname)")
    with wherry.held_move("busy-0", target, "rounds") as move:
        refused = there(*words)
    assert refused.returncode == 5 and "busy-0 is moving" in refused.stderr, refused.stderr
    done = wherry("op", "wait", move.operation)
    assert done.returncode == 0, done.stderr
    done = there(*words)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in work.iterdir()} == {"busy-0", "busy-1"}
    wherry.move("busy-0", source)
    wherry.json("down", "busy")


def test_the_next_daemon_takes_out_what_a_killed_one_left(wherry: RealInstance, work: Path) -> None:
    """As if it had been killed when one of two nodes had the directory. The nodes can be moved, and get it anew."""
    wherry.up("left", 2)
    (node, host), *_ = wherry.hosts_of("left").items()
    pid = min(Cgroup(f"{wherry.instance.prefix}/{host}/{node}").pids())
    wherry.kill_daemon()
    store = Store(wherry.instance.state / "wherry.db")
    store.put_cluster(find_cluster(store, "left").model_copy(update={"binding": (str(work),)}))
    store.close()
    namespace, directory = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), os.open(work, os.O_PATH | os.O_DIRECTORY)
    hot_bind.attach(namespace, directory, str(work))
    os.close(namespace)
    os.close(directory)
    assert str(work) in Path(f"/proc/{pid}/mountinfo").read_text()
    wherry.start_daemon()
    assert wherry.json("status", "left")["clusters"][0]["binding"] == []
    assert str(work) not in Path(f"/proc/{pid}/mountinfo").read_text()
    if find_criu().works:
        wherry.move(node, next(other for other in wherry.hosts() if other != host))
    there = RealInstance(wherry.instance.name, work)
    done = there("run", "left", "-n", "2", "--", "/bin/sh", "-c", "touch $(hostname)")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in work.iterdir()} == {"left-0", "left-1"}
    wherry.json("down", "left")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory that the user nobody owns, where nodes see the machine's files read-only."""
    with tempfile.TemporaryDirectory(dir="/opt", prefix="wherry-scratch-") as name:
        path = Path(name)
        path.chmod(0o755)
        os.chown(path, 65534, 65534)
        yield path


def test_a_job_writes_where_it_runs(wherry: RealInstance, scratch: Path) -> None:
    """Outside of the home and of the directory of `up`; also after a move. In a directory of the system's it
    cannot, and gets a message."""
    mine = RealInstance(wherry.instance.name, wherry.directory, **AS_NOBODY)
    mine.up("cwd", 2)
    mine.directory = scratch / "run"
    mine.directory.mkdir()
    os.chown(mine.directory, 65534, 65534)
    words = ("run", "cwd", "-n", "2", "--", "/bin/sh", "-c", "touch $0.$(hostname)")
    done = mine(*words, "first")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert wherry.json("status", "cwd")["clusters"][0]["binds"][-1] == str(scratch), "its parents cannot be renamed"
    if find_criu().works:
        source = wherry.hosts_of("cwd")["cwd-1"]
        wherry.move("cwd-1", next(host for host in wherry.hosts() if host != source))
    assert mine(*words, "second").returncode == 0
    made = {f"{word}.cwd-{n}" for word in ("first", "second") for n in range(2)}
    assert {path.name for path in mine.directory.iterdir()} == made
    wherry.json("down", "cwd")
    roots = RealInstance(wherry.instance.name, wherry.directory)
    roots.up("roots", 1)
    roots.directory = Path("/usr/share")
    done = roots("run", "roots", "-n", "1", "--", "/bin/sh", "-c", "touch wherry-x")
    assert done.returncode != 0 and "warning: /usr/share is not bound into the nodes of roots" in done.stderr
    wherry.json("down", "roots")


def test_a_cluster_file_names_directories(wherry: RealInstance, scratch: Path, tmp_path: Path) -> None:
    """More may be named while it runs. A directory that cannot be bound is refused, and nothing has changed."""
    (scratch / "more").mkdir()
    file = tmp_path / "named.yaml"

    def up(*directories: str) -> subprocess.CompletedProcess[str]:
        named = ", ".join(directories)
        file.write_text(f"name: named\nnodes: 2\ncpus: 0.2\nmemory: 128MiB\ndirectories: [{named}]\n")
        return wherry("up", str(file))

    for wrong in (f"{scratch}/none", "/usr/bin", "/tmp"):
        done = up(str(scratch / "more"), wrong)
        assert done.returncode != 0 and f"{wrong} cannot be bound" in done.stderr, done.stderr
    assert wherry("status", "named").returncode != 0, "there is no such cluster"
    assert up(str(scratch / "more")).returncode == 0
    done = wherry("run", "named", "-n", "2", "--", "/bin/sh", "-c", f"touch {scratch}/more/$(hostname)")
    assert done.returncode == 0, done.stderr
    done = up(str(scratch / "more"), str(scratch))
    assert done.returncode != 0 and f"it would hide {scratch}/more" in done.stderr
    with tempfile.TemporaryDirectory(dir="/opt", prefix="wherry-added-") as added:
        assert up(str(scratch / "more"), added).returncode == 0
        done = wherry("run", "named", "-n", "2", "--", "/bin/sh", "-c", f"touch {added}/$(hostname)")
        assert done.returncode == 0 and sorted(os.listdir(added)) == ["named-0", "named-1"], done.stderr
        wherry.json("down", "named")


def test_what_is_mounted_after_up_is_seen(wherry: RealInstance, scratch: Path) -> None:
    """By jobs that name it: as their program, directory, or in a variable."""
    wherry.up("after", 2)
    places = [scratch / name for name in ("programs", "data", "named")]
    for place in places:
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "wherry-test", str(place)], check=True)
    try:
        program = places[0] / "bin" / "say"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\ncat input $NAMED/file && touch $(hostname)\n")
        program.chmod(0o755)
        (places[1] / "input").write_text("a")
        (places[2] / "file").write_text("b")
        variables = {"NAMED": str(places[2]), "PATH": f"{program.parent}:/usr/bin:/bin"}
        there = RealInstance(wherry.instance.name, places[1], **variables)
        done = there("run", "after", "-n", "2", "--", "say")
        assert done.returncode == 0 and done.stdout == "abab", (done.stdout, done.stderr)
        assert {path.name for path in places[1].iterdir()} == {"input", "after-0", "after-1"}
    finally:
        wherry.json("down", "after")
        for place in places:
            subprocess.run(["umount", str(place)], check=False)


@pytest.mark.skipif(not find_criu().works, reason="no CRIU works here")
def test_a_node_lets_go_of_what_its_host_has_unmounted(wherry: RealInstance, scratch: Path) -> None:
    """Before a move; the move of a node whose programs use it is refused, as the host would be."""
    os.chown(scratch, 0, 0)
    for name in ("lower", "upper", "mount"):
        (scratch / name).mkdir()
    (scratch / "lower" / "file").touch()
    where, layers = scratch / "mount", f"lowerdir={scratch}/lower:{scratch}/upper"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "wherry-test", str(where)], check=True)
    try:
        wherry.up("stale", 2)
    finally:
        subprocess.run(["umount", str(where)], check=True)
    hosts, node = wherry.hosts_of("stale"), "stale-0"
    target = next(host for host in wherry.hosts() if host != hosts[node])
    see = ("exec", node, "--", "/bin/ls", str(where))
    assert wherry(*see).stdout == "file\n"
    with subprocess.Popen(
        [WHERRY, "exec", node, "--", "/bin/sh", "-c", "exec <$0 && echo has it && exec sleep 600", f"{where}/file"],
        env=wherry.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    ) as user:  # fmt: skip
        try:
            assert user.stdout and user.stdout.readline() == "has it\n"
            for more in ((), ("--dry-run",)):
                refused = wherry("move", node, "--to", target, *more)
                assert refused.returncode == 4, refused.stdout + refused.stderr
                assert f"(sleep) uses {where}, which was unmounted" in refused.stdout + refused.stderr
        finally:
            user.terminate()
    wherry.move(node, target)
    assert wherry(*see).stdout == "", "as at its host"
    wherry.json("down", "stale")
