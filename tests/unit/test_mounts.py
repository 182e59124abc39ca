"""Removing what is ours, and nothing that only shows there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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
