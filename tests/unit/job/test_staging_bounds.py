"""A job's files: found with bounds, and until the run is cancelled."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

import waiting
from wherry.base.errors import Code, Failed, Refused
from wherry.job import staging
from wherry.model.owner import Owner
from wherry.model.records import Cluster
from wherry.node.file_closure import FileSet

PROGRAM = Path("/usr/bin/env")


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
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


def cluster(needs: Path, image: str = "default", served: tuple[str, ...] = ()) -> Cluster:
    spec = {"kind": "vm", "name": "vm", "nodes": 1, "needs": [str(needs)], "memory": "512MiB", "image": image}
    return Cluster.model_validate(
        {"name": "vm", "spec": spec, "state": "running", "network": 1, "subnet": "10.0.0.0/24", "head_host": "a",
         "owner_uid": 0, "owner_gid": 0, "created": 0, "served": served}
    )  # fmt: skip


def test_needs_that_no_node_can_hold_are_refused_while_they_are_found(tree: Path, owner: Owner) -> None:
    with pytest.raises(Refused) as refused:
        staging.gather(cluster(tree), [PROGRAM], owner, {}, ())
    assert refused.value.code == Code.NO_CAPACITY and str(tree) in refused.value.what
    assert "512.0 MiB" in refused.value.why and refused.value.next.startswith(f"du -xhd1 {tree}")


def test_what_nodes_see_anyway_or_have_a_disk_for_counts_for_nothing(tree: Path, owner: Owner) -> None:
    served = staging.gather(cluster(tree, served=(str(tree),)), [PROGRAM], owner, {}, ())
    assert str(tree / "a") not in served.files
    assert str(tree / "a") in staging.gather(cluster(tree, image="/i.qcow2"), [PROGRAM], owner, {}, ()).files


@pytest.mark.parametrize("image", ["default", "/i.qcow2"])
def test_needs_of_too_many_entries_are_refused(
    tmp_path: Path, owner: Owner, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    """Entries that are copied nowhere, such as links to nothing, count, too."""
    monkeypatch.setattr(staging, "_ENTRIES", 5, raising=False)
    (tmp_path / "links").mkdir()
    for number in range(6):
        (tmp_path / "links" / str(number)).symlink_to("nothing")
    with pytest.raises(Refused, match="more than 5 files") as refused:
        staging.gather(cluster(tmp_path / "links", image), [PROGRAM], owner, {}, ())
    assert refused.value.code == Code.NO_CAPACITY and str(tmp_path / "links") in refused.value.next


def test_a_deep_tree_is_taken_whole(tmp_path: Path) -> None:
    deep = f"{tmp_path}{'/d' * 1200}"
    subprocess.run(["mkdir", "-p", deep], check=True)
    files = FileSet()
    files.add_tree(tmp_path)
    subprocess.run(["rm", "-rf", f"{tmp_path}/d"], check=True)  # what pytest cannot
    assert deep in files.directories


@pytest.mark.parametrize("uid", [os.getuid(), 65534])
def test_finding_files_ends_when_the_run_is_cancelled(owner: Owner, monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
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
        who = owner.model_copy(update={"uid": uid, "gid": uid, "cwd": top})
        with pytest.raises(Failed, match="run was cancelled"):
            staging.gather(cluster(Path(top)), [PROGRAM], who, {}, (), check)
    assert len(found) == 1


def test_packing_files_ends_when_the_run_is_cancelled(
    tree: Path, owner: Owner, monkeypatch: pytest.MonkeyPatch
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
        staging._pack(files, owner, {}, check)
    assert len(written) == 1
