"""Directories that are bound into running nodes, that all nodes get them or none, and how they are mounted there."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from binds_world import ME, NOBODY, cluster_with, inside, mount_namespace, needs_root, show
from fakeworld import World, fabric_spec
from rest_service import CLUSTER, Service, client_of

from wherry.base.errors import Code, Failed, Refused
from wherry.cluster.binds import require_bindable
from wherry.cluster.lookup import find_cluster
from wherry.cluster.placements import Placements
from wherry.job.file_visibility import make_visible
from wherry.job.validation import plan
from wherry.model.job_request import JobRequest
from wherry.model.records import Move, NodeState, Phase
from wherry.node.as_user import as_user
from wherry.node.container import hot_bind
from wherry.node.container.mounts import Bind, mount, unmount_below
from wherry.service.claims import Claims
from wherry.service.operations import Operations
from wherry.service.task import Task


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory below /tmp that everybody can read."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="wherry-") as name:
        path = Path(name)
        path.chmod(0o755)
        for directory in ("a/bin", "b", "c"):
            (path / directory).mkdir(parents=True)
        (path / "a" / "bin" / "program").write_text("#!/bin/sh\n")
        (path / "a" / "bin" / "program").chmod(0o755)
        yield path


# The choice of directories.


def test_what_nodes_lack_is_found(top: Path) -> None:
    program = top / "a" / "bin" / "program"

    def wanted(program: Path, here: Path, *binds: str) -> tuple[str, ...]:
        found, further = make_visible(program, here, cluster_with(*binds), ())
        assert found == program
        return further

    assert wanted(program, Path("/usr")) == (f"{top}/a/bin",)
    assert wanted(Path("/bin/true"), top / "b") == (f"{top}/b",)
    assert wanted(program, top / "b") == (f"{top}/a/bin", f"{top}/b")
    assert wanted(program, top / "a") == (f"{top}/a",), "one inside the other is bound with it"
    assert wanted(program, top / "b", f"{top}/b") == (f"{top}/a/bin",)
    assert wanted(program, top / "b", str(top)) == ()
    assert wanted(Path("/bin/true"), Path("/usr")) == ()


def test_links_to_a_program_are_resolved(top: Path) -> None:
    """A directory's link is followed, for the node has none; a program's own name is kept, as programs look at it."""
    (top / "link").symlink_to(top / "a" / "bin")
    (top / "b" / "named").symlink_to("../a/bin/program")
    found = make_visible(top / "link" / "program", Path("/usr"), cluster_with(), ())
    assert found == (top / "a" / "bin" / "program", (f"{top}/a/bin",))
    found = make_visible(top / "b" / "named", Path("/usr"), cluster_with(), ())
    assert found == (top / "b" / "named", (f"{top}/b", f"{top}/a/bin"))
    (top / "b" / "round").symlink_to("round")
    assert make_visible(top / "b" / "round", Path("/usr"), cluster_with(), ())[1] == (f"{top}/b",)
    with pytest.raises(Refused, match="cannot be bound") as refused:
        make_visible(Path("/bin/true"), top / "link", cluster_with(), ())
    assert "it leads to" in refused.value.why and refused.value.next.startswith(f"cd to {top}/a/bin")


@pytest.mark.parametrize("path", ["/tmp", "/run/wherry-none", "/run/user/0", "/dev/shm/x"])
def test_what_is_private_to_nodes_is_not_bound(path: str) -> None:
    """The rules of `wherry up` that remain."""
    with pytest.raises(Refused, match="do not see the working directory"):
        make_visible(Path("/bin/true"), Path(path), cluster_with(), ())
    with pytest.raises(Refused, match="do not see the program"):
        make_visible(Path(path, "x"), Path("/"), cluster_with(), ())


@pytest.mark.parametrize(
    "path", ["/", "/proc", "/sys/kernel", "/dev", "/run/x", "/usr/bin", "/etc/ssl", "/var", "/tmp", "/tmp/a\nb"]
)
def test_what_is_the_systems_is_not_bound(path: str) -> None:
    with pytest.raises(Refused, match="cannot be bound into the nodes of n"):
        require_bindable(path, cluster_with())


def test_what_would_hide_something_is_refused_by_name(top: Path) -> None:
    with pytest.raises(Refused) as refused:
        require_bindable(f"{top}/a", cluster_with("/root", f"{top}/a/bin"))
    assert refused.value.why == f"it would hide {top}/a/bin, which is bound already"
    assert refused.value.next == f"wherry down n, then wherry up FILE from {top}/a"
    require_bindable(f"{top}/a", cluster_with("/root", f"{top}/ab"))
    for closed in (f"{top}/a", f"{top}/a/bin/state", str(top)):
        with pytest.raises(Refused, match="cannot be bound") as refused:
            require_bindable(f"{top}/a", cluster_with(), (closed,))
        assert refused.value.why == f"{closed} is Wherry's own"


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o711, 0o744])
def test_what_the_owner_may_not_read_or_enter_is_refused(top: Path, mode: int) -> None:
    (top / "a").chmod(mode)
    inner = f"{top}/a" if mode != 0o744 else f"{top}/a/bin"
    require_bindable(inner, cluster_with())
    with pytest.raises(Refused) as refused:
        as_user(NOBODY, lambda: require_bindable(inner, cluster_with()))
    assert refused.value.code == Code.PERMISSION and "may not read it" in refused.value.why


def test_virtual_machines_have_copies(top: Path) -> None:
    """Nothing is bound, and nothing is refused: the program is copied."""
    owner = ME.model_copy(update={"cwd": str(top / "b")})
    program = str(top / "a" / "bin" / "program")
    order = JobRequest(cluster="n", argv=(program,), ranks=1, owner=owner, env={"PATH": "/usr/bin:/bin"}, mpi="openmpi")
    try:
        assert plan(order, cluster_with(kind="vm")).further == ()
        assert plan(order, cluster_with()).further == (f"{top}/a/bin", f"{top}/b")
    except Refused as error:
        if error.code is not Code.NOT_FOUND:
            raise
        pytest.skip("no Open MPI")


# All nodes or none.


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.make("hello", 3, owner=ME)
    return world


def test_all_nodes_get_it_and_the_row(world: World, top: Path) -> None:
    before, said = find_cluster(world.store, "hello").binds, list[str]()
    world.clusters.binds.add("hello", ME, [f"{top}/a", f"{top}/b"], said.append)
    cluster = find_cluster(world.store, "hello")
    assert cluster.binds == (*before, f"{top}/a", f"{top}/b") and cluster.binding == ()
    assert world.driver.bound == {f"hello-{n}": [f"{top}/a", f"{top}/b"] for n in range(3)}
    assert said == [f"{top}/{name} is bound into 3 nodes of hello, writable" for name in "ab"]
    assert [event.text for event in world.store.events() if event.kind == "cluster.bind"] == said
    node = world.store.node("hello-1")
    assert node and Placements(world.store, world.fabric).placement(node, "b2").binds == cluster.binds
    assert world.clusters.plan(cluster.spec, ME).binds == cluster.binds, "a repair has it, too"
    world.clusters.binds.add("hello", ME, [f"{top}/a/bin"], said.append)
    assert find_cluster(world.store, "hello") == cluster and len(said) == 2, "it is bound already"


def test_the_row_says_what_is_being_bound_before_any_node_has_it(world: World, top: Path) -> None:
    seen = list[tuple[str, tuple[str, ...]]]()
    world.driver.on_call = lambda name: seen.append((name, find_cluster(world.store, "hello").binding))
    world.clusters.binds.add("hello", ME, [f"{top}/a"])
    assert seen == [("bind", (f"{top}/a",))] * 3


def test_none_has_it_when_one_cannot(world: World, top: Path) -> None:
    before = find_cluster(world.store, "hello")
    world.driver.fail_at["bind"] = "no room"
    with pytest.raises(Failed) as failed:
        world.clusters.binds.add("hello", ME, [f"{top}/a"])
    assert failed.value.what == f"{top}/a was not bound into the nodes of hello" and "no room" in failed.value.why
    assert world.driver.bound == {f"hello-{n}": [] for n in range(3)}
    assert find_cluster(world.store, "hello") == before


def test_what_was_interrupted_is_undone(world: World, top: Path) -> None:
    """By the next daemon, and else by the next job. While a node keeps it, nothing else is bound."""
    before = find_cluster(world.store, "hello")
    world.store.put_cluster(before.model_copy(update={"binding": ("/tmp/x",)}))
    world.driver.bound = {"hello-0": ["/tmp/x"]}
    world.driver.fail_at["unbind"] = "it hangs"
    with pytest.raises(Failed, match="/tmp/x is still bound into nodes of hello"):
        world.clusters.binds.add("hello", ME, [f"{top}/a"])
    assert find_cluster(world.store, "hello").binding == ("/tmp/x",)
    world.driver.bound = {"hello-0": ["/tmp/x"]}
    world.clusters.binds.end("hello")
    assert find_cluster(world.store, "hello") == before and world.driver.bound["hello-0"] == []


def test_the_next_daemon_undoes_it(service: Service) -> None:
    with client_of(service) as http:
        up(service, http)
    managers, store = service.context.require_managers(), service.context.store
    store.put_cluster(find_cluster(store, "hello").model_copy(update={"binding": ("/tmp/x",)}))
    managers.drivers["container"].bound["hello-0"] = ["/tmp/x"]  # type: ignore[attr-defined]
    service.context.recover()
    assert find_cluster(store, "hello").binding == ()
    assert managers.drivers["container"].bound["hello-0"] == []  # type: ignore[attr-defined]


def moving(world: World) -> None:
    phase = {"source": "a1", "destination": "a2", "phase": Phase.RESTORE}
    world.store.put_move(Move(id="m", node="hello-1", cluster="hello", created=0, **phase))  # type: ignore[arg-type]


def lost(world: World) -> None:
    node = world.store.node("hello-1")
    assert node
    world.store.put_node(node.model_copy(update={"state": NodeState.LOST}))


@pytest.mark.parametrize(("change", "state"), [(moving, "moving"), (lost, "lost")])
def test_not_while_a_node_moves_or_is_lost(
    world: World, top: Path, change: Callable[[World], None], state: str
) -> None:
    change(world)
    for act in (world.clusters.binds.check, lambda name, paths: world.clusters.binds.add(name, ME, paths)):
        with pytest.raises(Refused) as refused:
            act("hello", [f"{top}/a"])
        assert (refused.value.code, refused.value.why) == (Code.WRONG_STATE, f"hello-1 is {state}")
    assert world.driver.bound == {}


def test_not_where_a_host_lacks_it(tmp_path: Path, top: Path) -> None:
    facts = {"without_files": [f"{top}/a"]}
    world = World(tmp_path, fabric_spec(a1=facts, a2=facts, b1=facts, b2=facts))
    world.make("hello", 2, owner=ME)
    with pytest.raises(Refused, match="cannot be bound") as refused:
        world.clusters.binds.add("hello", ME, [f"{top}/a"])
    assert f"lacks {top}/a" in refused.value.why


# The claim.


def up(service: Service, http: httpx.Client) -> None:
    made = http.post("/v1/clusters", json={"spec": CLUSTER})
    service.context.operations.wait(made.headers["Location"].rpartition("/")[2], 20)


def test_nothing_moves_meanwhile(service: Service, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that needs a bind claims the cluster alone until it is bound; one under way refuses it."""
    operations = service.context.operations
    job = {"cluster": "hello", "argv": ["sleep"], "ranks": 1}
    with client_of(service) as http:
        up(service, http)
        plan = service.jobs.plan
        monkeypatch.setattr(service.jobs, "plan", lambda request: replace(plan(request), further=(f"{top}/a",)))
        busy = operations.start("move", "x", lambda task: task.stop.wait(20) and None, shared=["cluster hello"])
        refused = http.post("/v1/jobs", json=job)
        assert refused.status_code == 409 and busy.id in refused.json()["why"]
        operations.cancel(busy.id)
        operations.wait(busy.id, 20)

        claims, seen, driver = dict[str, Any](), threading.Event(), service.context.require_managers().drivers
        driver["container"].on_call = lambda name: claims.setdefault(  # type: ignore[attr-defined]
            name, operations.conflicting_operation(shared=["cluster hello"])
        )
        start = service.jobs.start

        def started(*words: Any) -> Any:
            claims["start"] = operations.conflicting_operation(shared=["cluster hello"])
            seen.set()
            return start(*words)

        monkeypatch.setattr(service.jobs, "start", started)
        begun = http.post("/v1/jobs", json=job)
        assert begun.status_code == 202 and seen.wait(20)
        assert claims["bind"].kind == "run" and claims["start"] is None
        assert f"{top}/a" in find_cluster(service.context.store, "hello").binds


def test_two_jobs_that_need_it_at_once_both_start(service: Service, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits until the first has bound it and started. A waiting job may be cancelled."""
    operations, context = service.context.operations, service.context
    job = {"cluster": "hello", "argv": ["sleep"], "ranks": 1}
    with client_of(service) as http:
        up(service, http)
        plan, binding, go = service.jobs.plan, threading.Event(), threading.Event()
        monkeypatch.setattr(service.jobs, "plan", lambda request: replace(plan(request), further=(f"{top}/a",)))
        driver = context.require_managers().drivers["container"]

        def hold(name: str) -> None:
            if name == "bind":
                binding.set()
                assert go.wait(20)

        driver.on_call = hold  # type: ignore[attr-defined]
        ids = list[str]()
        for _ in range(4):
            answer = http.post("/v1/jobs", json=job)
            assert answer.status_code == 202, answer.text
            ids.append(answer.json()["id"])
            assert binding.wait(20)
        assert [operations.get(id).state for id in ids] == ["running"] * 4
        operations.cancel(ids[3])
        assert operations.wait(ids[3], 20).state == "cancelled"
        go.set()
        assert [operations.wait(id, 20).state for id in ids] == ["done"] * 3 + ["cancelled"]
        assert any(f"waiting until {ids[0]}" in line for line in operations.lines(ids[1], 0))
    assert driver.bound == {f"hello-{n}": [f"{top}/a"] for n in range(3)}  # type: ignore[attr-defined]


def test_a_job_that_waits_is_refused_what_a_move_has(
    service: Service, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that it waits for ends just when the job has been refused for it: the refusal names the move."""
    operations, claim = service.context.operations, Operations._claim

    def claim_or_end_the_run(self: Operations, task: Task, more: Claims) -> None:
        try:
            claim(self, task, more)
        except Refused:
            with suppress(Refused):  # the second time it has ended
                operations.cancel(first.id)
            operations.wait(first.id, 20)
            raise

    with client_of(service) as http:
        up(service, http)
        plan = service.jobs.plan
        monkeypatch.setattr(service.jobs, "plan", lambda request: replace(plan(request), further=(f"{top}/a",)))
        monkeypatch.setattr(Operations, "_claim", claim_or_end_the_run)
        shared = ["cluster hello"]
        first = operations.start("run", "x", lambda task: task.stop.wait(20) and None, shared=shared)
        move = operations.start("move", "x", lambda task: task.stop.wait(20) and None, shared=shared)
        begun = http.post("/v1/jobs", json={"cluster": "hello", "argv": ["sleep"], "ranks": 1})
        ended = operations.wait(begun.json()["id"], 20)
        operations.cancel(move.id)
    assert ended.error and ended.error["code"] == "WRONG_STATE" and move.id in ended.error["why"]


# How.


def test_names_in_images_differ() -> None:
    assert Bind("", "/tmp/a.b").name != Bind("", "/tmp/a/b").name


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[int]:
    """The mount namespace of a process with a /tmp of its own, as a node has."""
    with mount_namespace("mount -t tmpfs -o mode=1777 node /tmp") as made:
        yield made


@needs_root
def test_a_mount_in_a_node_allows_no_more_than_the_hosts(namespace: int, top: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text().count(str(top))
    mount("wherry-test", top / "b", "tmpfs", 1 | 8, "size=64k")  # read-only and noexec
    try:
        for name in ("a", "b"):
            show(namespace, top / name)
    finally:
        unmount_below(top)
    lines = inside(namespace, "cat", "/proc/self/mountinfo").splitlines()
    options = {line.split()[4]: line.split()[5].split(",") for line in lines if str(top) in line.split()[4]}
    assert set(options) == {f"{top}/a", f"{top}/b"}
    assert {"rw", "nosuid", "nodev"} <= set(options[f"{top}/a"]) and "noexec" not in options[f"{top}/a"]
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(options[f"{top}/b"])
    shared = [line for line in lines if str(top) in line.split()[4] and ("shared:" in line or "master:" in line)]
    assert shared == [], "no mount of the host's appears in it later"
    assert inside(namespace, "stat", "-c", "%u %a", str(top)) == "0 755\n"
    assert inside(namespace, "ls", f"{top}/a") == "bin\n"
    assert Path("/proc/self/mountinfo").read_text().count(str(top)) == before
    for _ in range(2):
        for name in ("a", "b"):
            hot_bind.detach(namespace, f"{top}/{name}")
    assert inside(namespace, "ls", "/tmp") == "", "the mount points are removed"
    assert (top / "a" / "bin").is_dir()


@needs_root
@pytest.mark.parametrize(
    ("make", "why"),
    [
        ("ln -s /etc {top}", "no directory"),
        ("touch {top}", "no directory"),
        ("mkdir {top}; chown 65534 {top}", "not root's"),
        ("mkdir {top}; chmod 777 {top}", "not root's"),
        ("mkdir -p {top}/a/own", "files of its own"),
    ],
)
def test_what_a_node_has_in_the_way_stays_and_is_not_followed(namespace: int, top: Path, make: str, why: str) -> None:
    inside(namespace, "sh", "-c", make.format(top=top))
    listing = ("find", "/tmp", "/etc/passwd", "-printf", "%p %y %U %m\\n")
    # only mounts below /tmp: other tests remove directories on which this namespace has mounts, too
    mounts = ("awk", '$5 ~ "^/tmp"', "/proc/self/mountinfo")
    before = inside(namespace, *listing), inside(namespace, *mounts)
    with pytest.raises(OSError, match=why):
        show(namespace, top / "a")
    hot_bind.detach(namespace, f"{top}/a")
    assert (inside(namespace, *listing), inside(namespace, *mounts)) == before
