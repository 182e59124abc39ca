"""Removing our own files, and nothing that only shows there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from wherry.base.errors import Failed
from wherry.fabric.cgroup import Layout
from wherry.node.container import mounts, shown_cgroups


def test_a_tree_that_a_user_made_as_deep_as_possible_is_removed(tmp_path: Path) -> None:
    tree, kept = tmp_path / "tree", tmp_path / "kept"
    tree.mkdir()
    kept.write_text("mine")
    before = os.open(".", os.O_RDONLY)
    os.chdir(tree)
    try:
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
        os.symlink(tmp_path, "link")
    finally:
        os.fchdir(before)
        os.close(before)
    mounts.remove_tree(tree)
    assert not tree.exists() and kept.read_text() == "mine"
    mounts.remove_tree(tree)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts are root's")
def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here an unknown mount: a caller drops its row, the last record of the directory, only when the directory is
    gone."""
    place = tmp_path / "place"
    (place / "deep" / "kept").mkdir(parents=True)
    (place / "file").write_text("ours")
    mounts.mount("tmpfs", place / "deep" / "kept", "tmpfs")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(mounts, "unmount_below", lambda _: None)
            patch.setattr(mounts, "mounted", lambda: [])
            with pytest.raises(Failed, match=f"{place} was not removed") as failed:
                mounts.remove_tree(place)
        assert str(place / "deep") in failed.value.why and "rm:" not in failed.value.why
        assert not (place / "file").exists()
        mounts.remove_tree(place)
        assert not place.exists()
    finally:
        subprocess.run(["umount", str(place / "deep" / "kept")], capture_output=True, check=False)


def test_what_a_program_writes_while_its_tree_is_removed_is_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, attempts, run = tmp_path / "place", list[int](), subprocess.run
    place.mkdir()

    def busy_once(command: list[str], **options: Any) -> Any:
        attempts.append(len(attempts))
        return run(["false"], capture_output=True, check=False) if len(attempts) == 1 else run(command, **options)

    monkeypatch.setattr(mounts, "unmount_below", lambda _: None)
    monkeypatch.setattr(subprocess, "run", busy_once)
    mounts.remove_tree(place)
    assert attempts == [0, 1] and not place.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts are root's")
def test_what_is_mounted_in_a_tree_is_unmounted_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, place = tmp_path / "home", tmp_path / "place"
    (place / "binds").mkdir(parents=True)
    home.mkdir()
    (home / "file").write_text("mine")
    mounts.mount(str(home), place / "binds", flags=mounts.MS_BIND)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(mounts, "unmount_below", lambda _: None)
            with pytest.raises(Failed, match="still mounted"):
                mounts.remove_tree(place)
        mounts.remove_tree(place)
        assert not place.exists() and (home / "file").read_text() == "mine"
    finally:
        subprocess.run(["umount", str(place / "binds")], capture_output=True, check=False)


# Where nodes see their cgroups, whatever the machine has mounted.


ROOT = Path("/sys/fs/cgroup")
SEPARATE = {name: ROOT / name for name in ("memory", "cpu", "cpuacct", "freezer", "pids")}
TOGETHER = {"memory": ROOT / "m", "cpu": ROOT / "cpu,cpuacct", "cpuacct": ROOT / "cpu,cpuacct"}
V2 = frozenset({"cpu", "memory"})


@pytest.mark.parametrize(
    ("layout", "sets", "names"),
    [
        (Layout(SEPARATE), ROOT / "cpuset", ["memory", "cpu", "cpuacct", "pids", "cpuset"]),
        (Layout(TOGETHER), ROOT / "m", ["memory,cpuset", "cpu,cpuacct"]),
        (Layout(TOGETHER, ROOT / "unified"), None, ["memory", "cpu,cpuacct"]),
        (Layout({}, ROOT, V2), None, [""]),
        (Layout({}), None, []),
    ],
)
def test_hierarchies_have_the_names_of_their_controllers(layout: Layout, sets: Path | None, names: list[str]) -> None:
    assert list(shown_cgroups.named(layout, sets)) == names


def test_hierarchies_are_mounted_below_a_directory_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown_cgroups, "hierarchies", lambda: shown_cgroups.named(Layout(TOGETHER), ROOT / "m"))
    shown_cgroups.fill(tmp_path / "made")
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"memory", "cpu", "cpuset", "cpuacct"} | {
        *("memory,cpuset", "cpu,cpuacct")
    }
    assert (tmp_path / "made" / "cpu").readlink() == Path("cpu,cpuacct")
    assert shown_cgroups.mounts("w/a1/n-0", tmp_path / "made") == {
        "/sys/fs/cgroup": str(tmp_path / "made"),
        "/sys/fs/cgroup/memory,cpuset": "/sys/fs/cgroup/m/w/a1/n-0",
        "/sys/fs/cgroup/cpu,cpuacct": "/sys/fs/cgroup/cpu,cpuacct/w/a1/n-0",
    }


def test_the_one_hierarchy_of_v2_is_mounted_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_cgroups, "hierarchies", lambda: {"": ROOT / "unified"})
    assert shown_cgroups.mount_points() == ["/sys/fs/cgroup"]
    assert shown_cgroups.mounts("w/a1/n-0", tmp_path) == {"/sys/fs/cgroup": "/sys/fs/cgroup/unified/w/a1/n-0"}
