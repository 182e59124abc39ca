"""Removing our own files, and nothing that only shows there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from wherry.base.errors import Failed
from wherry.node.container import mounts


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
