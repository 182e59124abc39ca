"""Directories that a running node shows read-only: which of them are bound, and how."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from binds_world import ME, NOBODY, cluster_with, inside, mount_namespace, needs_root, show
from fakeworld import World

from wherry.base.errors import Code, Refused
from wherry.cluster.binds import mounts_named, named_directories, writable_directory
from wherry.cluster.lookup import find_cluster
from wherry.model.spec.cluster import ClusterSpec
from wherry.node.as_user import as_user
from wherry.node.container import hot_bind
from wherry.node.container.mounts import mount, unmount_below


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory of root's outside of /tmp."""
    with tempfile.TemporaryDirectory(dir="/opt", prefix="wherry-") as name:
        path = Path(name)
        path.chmod(0o755)
        for directory in ("a/b", "mine/run"):
            (path / directory).mkdir(parents=True)
        if os.geteuid() == 0:
            for directory in ("mine", "mine/run"):
                os.chown(path / directory, 65534, 65534)
        try:
            yield path
        finally:
            unmount_below(path)


# The choice of directories.


@needs_root
def test_the_highest_directory_whose_name_nobody_else_can_change_is(top: Path) -> None:
    def bound(here: str, owner: object = NOBODY, *binds: str) -> tuple[str, str]:
        return as_user(NOBODY, lambda: writable_directory(here, cluster_with(*binds), owner, ()))  # type: ignore[arg-type]

    assert bound(f"{top}/mine/run") == (f"{top}/mine", "")
    assert bound(f"{top}/mine/run", ME) == (f"{top}/mine/run", ""), "root trusts its own paths"
    assert bound(f"{top}/mine/run", NOBODY, f"{top}/mine") == ("", "")
    directory, why = bound(f"{top}/mine/run", NOBODY, f"{top}/mine/run/deep")
    assert directory == "" and "it would hide" in why
    (top / "a").chmod(0o1777)
    assert bound(f"{top}/a/b") == (f"{top}/a/b", ""), "b is root's, and stays under the sticky bit"
    (top / "a").chmod(0o777)
    assert bound(f"{top}/a/b") == (f"{top}/a", "")


@pytest.mark.parametrize("here", ["/", "/usr/share", "/etc", "/var", "/usr/lib/locale"])
def test_the_systems_own_are_not(here: str) -> None:
    """A user who may write there gets the reason; others do not."""
    directory, why = writable_directory(here, cluster_with(), ME, ())
    assert directory == "" and bool(why) == os.access(here, os.W_OK)
    if os.geteuid() == 0:
        assert as_user(NOBODY, lambda: writable_directory(here, cluster_with(), NOBODY, ())) == ("", "")


@needs_root
def test_wherrys_own_are_not(top: Path) -> None:
    for closed in (str(top), f"{top}/a/b"):
        directory, why = writable_directory(f"{top}/a", cluster_with(), ME, (closed,))
        assert directory == "" and why == f"{closed} is Wherry's own"


@needs_root
def test_mounts_are_those_on_the_way_to_what_is_named(top: Path) -> None:
    for name in ("a", "a/b", "mine/run"):
        (top / name).mkdir(exist_ok=True)
        mount("wherry-test", top / name, "tmpfs", 0, "size=64k")
        (top / "a" / "b").mkdir(exist_ok=True)

    def named(*texts: str, binds: tuple[str, ...] = ()) -> tuple[str, ...]:
        found = mounts_named(texts, cluster_with(*binds), ME, ())
        return tuple(path.removeprefix(f"{top}/") for path in found if path.startswith(str(top)))

    assert named(f"{top}/a/x") == ("a",)
    assert named(f"/usr/bin:{top}/a/b/bin") == ("a", "a/b")
    assert named(f"--input={top}/mine/run/data,x") == ("mine/run",)
    assert named(str(top), f"{top}/ab", f"x{top}/a", "a", "") == ()
    assert named(f"{top}/a/b", binds=(f"{top}/a",)) == ()
    assert as_user(NOBODY, lambda: mounts_named([f"{top}/mine/run"], cluster_with(), NOBODY, ())) == (), (
        "nobody could have the runtime mount elsewhere"
    )


@needs_root
def test_directories_of_a_file_are_the_owners(top: Path) -> None:
    (top / "link").symlink_to(top / "mine" / "run")
    assert named_directories([f"{top}/link", f"{top}/mine"], NOBODY) == (f"{top}/mine",)
    (top / "a").chmod(0o700)
    for path, code in (("a/b", Code.PERMISSION), ("none", Code.NOT_FOUND)):
        with pytest.raises(Refused) as refused:
            named_directories([f"{top}/{path}"], NOBODY)
        assert refused.value.code == code
    for path in ("/usr/bin", "/dev/shm", "/tmp", "/proc/1"):
        with pytest.raises(Refused, match="cannot be bound into nodes"):
            named_directories([path], ME)


@needs_root
def test_a_running_cluster_gets_further_ones(tmp_path: Path, top: Path) -> None:
    """The plan refuses a directory that cannot be bound."""
    world = World(tmp_path)
    world.make("hello", 2, owner=ME)
    cluster = find_cluster(world.store, "hello")

    def spec(*directories: str) -> ClusterSpec:
        return cluster.spec.model_copy(update={"directories": directories})

    plan = world.clusters.plan(spec(f"{top}/a/b"), ME)
    assert not plan.empty and f"bind {top}/a/b into its containers" in plan.text()
    world.clusters.apply(plan)
    assert f"{top}/a/b" in find_cluster(world.store, "hello").binds
    assert world.driver.bound == {f"hello-{n}": [f"{top}/a/b"] for n in range(2)}
    assert world.clusters.plan(spec(f"{top}/a/b"), ME).empty
    with pytest.raises(Refused, match="cannot be bound") as refused:
        world.clusters.plan(spec(f"{top}/a"), ME)
    assert "it would hide" in refused.value.why


def test_a_job_is_started_though_its_directory_cannot_be_bound(tmp_path: Path, top: Path) -> None:
    world = World(tmp_path)
    world.make("hello", 2, owner=ME)
    said = list[str]()
    world.driver.fail_at["bind"] = "no room"
    world.clusters.binds.try_to_add("hello", ME, f"{top}/a", said.append)
    assert said[-1].startswith(f"warning: {top}/a is not bound into the nodes of hello") and "no room" in said[-1]
    assert find_cluster(world.store, "hello").binding == ()


def test_nodes_are_asked_once_what_they_show(tmp_path: Path, top: Path) -> None:
    world = World(tmp_path)
    world.make("hello", 2, owner=ME)
    world.driver.unseen = {f"{top}/a"}
    paths = [f"{top}/a", f"{top}/mine", f"{top}/none"]
    for _ in range(2):
        assert world.clusters.binds.unseen("hello", paths) == (f"{top}/a",)
    assert world.driver.calls.count("shows") == 2 + 2 + 2, "the visible path is asked for once a node"


# How.


@pytest.fixture
def namespace(top: Path) -> Iterator[int]:
    """The mount namespace of a process that sees the machine's files read-only, as a node does, with /opt/…/mine/run a
    mount of its own."""
    mount("wherry-test", top / "mine" / "run", "tmpfs", 0, "size=64k")
    script = f"mount --rbind /opt /opt; for at in /opt {top}/mine/run; do mount -o remount,bind,ro $at || exit; done"
    with mount_namespace(script) as made:
        yield made


def writable(namespace: int, path: Path) -> bool:
    """Whether a program there can make a file."""
    with suppress(subprocess.CalledProcessError):
        inside(namespace, "touch", f"{path}/made")
        (path / "made").unlink()
        return True
    return False


@needs_root
def test_a_directory_is_bound_over_what_the_node_shows(namespace: int, top: Path) -> None:
    assert not writable(namespace, top / "a")
    show(namespace, top / "a")
    assert writable(namespace, top / "a") and not writable(namespace, top)
    hot_bind.detach(namespace, f"{top}/a")
    hot_bind.detach(namespace, f"{top}/a")
    assert not writable(namespace, top / "a") and (top / "a" / "b").is_dir()


@needs_root
def test_a_mount_that_the_node_shows_becomes_writable_and_stays(namespace: int, top: Path) -> None:
    run = top / "mine" / "run"
    mounts = inside(namespace, "cat", "/proc/self/mountinfo").splitlines()
    assert not writable(namespace, run)
    for _ in range(2):
        show(namespace, run)
    assert writable(namespace, run)
    assert len(inside(namespace, "cat", "/proc/self/mountinfo").splitlines()) == len(mounts), "none is added"
    hot_bind.detach(namespace, str(run), shown=True)
    assert inside(namespace, "cat", "/proc/self/mountinfo").splitlines() == mounts


@needs_root
def test_what_the_host_may_not_write_stays_read_only(namespace: int, top: Path) -> None:
    run = top / "mine" / "run"
    mount("", run, "", 32 | 4096 | 1)  # MS_REMOUNT, MS_BIND, MS_RDONLY
    show(namespace, run)
    assert not writable(namespace, run)


@needs_root
def test_nothing_that_the_node_has_mounted_is_hidden(namespace: int, top: Path) -> None:
    before = inside(namespace, "cat", "/proc/self/mountinfo")
    with pytest.raises(OSError, match=f"it would hide the node's mount at {top}/mine/run"):
        show(namespace, top / "mine")
    unmount_below(top)
    mount("wherry-other", top / "mine" / "run", "tmpfs", 0, "size=64k")
    with pytest.raises(OSError, match="it would hide"):
        show(namespace, top / "mine" / "run")
    assert inside(namespace, "cat", "/proc/self/mountinfo") == before


@needs_root
def test_a_mount_that_the_node_lacks_is_shown(namespace: int, top: Path) -> None:
    mount("wherry-later", top / "a", "tmpfs", 0, "size=64k")
    (top / "a" / "file").touch()
    show(namespace, top / "a")
    assert inside(namespace, "ls", f"{top}/a") == "file\n" and writable(namespace, top / "a")
    hot_bind.detach(namespace, f"{top}/a")
    assert inside(namespace, "ls", f"{top}/a") == "b\n"


@needs_root
def test_what_is_used_is_not_taken_out(namespace: int, top: Path) -> None:
    run = top / "mine" / "run"
    (run / "file").touch()
    enter = ["nsenter", f"--mount=/proc/self/fd/{namespace}", "sh", "-c", f"exec <{run}/file; echo up; exec sleep 60"]
    with subprocess.Popen(enter, pass_fds=(namespace,), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as user:
        assert user.stdout and user.stdout.readline() == b"up\n"
        with pytest.raises(OSError, match="busy"):
            hot_bind.unmount(namespace, str(run))
        user.kill()
    hot_bind.unmount(namespace, str(run))
    assert inside(namespace, "ls", str(run)) == ""
