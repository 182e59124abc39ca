"""The files that a program needs, taken elsewhere under the same names."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from wherry.node.file_closure import FileSet, digest, link_digest


def unpacked(files: FileSet, top: Path, known: dict[str, str] | None = None) -> set[str]:
    """Writes the set and unpacks it below `top`; the members' names."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        files.write(tar, (os.getuid(), os.getgid()), known)
    top.mkdir(exist_ok=True)
    subprocess.run(["tar", "-x", "-f", "-", "-C", str(top)], input=archive.getvalue(), check=True)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        return set(tar.getnames())


def test_links_on_the_way_are_taken(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "data").write_text("content")
    (tmp_path / "near").symlink_to("real")
    (tmp_path / "far").symlink_to(tmp_path / "near")
    files = FileSet()
    assert files.add(tmp_path / "far" / "." / "data") == str(tmp_path / "real" / "data")
    unpacked(files, tmp_path / "there")
    inside = Path(f"{tmp_path}/there{tmp_path}")
    assert (inside / "near" / "data").read_text() == "content"
    assert os.readlink(inside / "far") == str(tmp_path / "near")


def test_a_program_runs_where_there_is_nothing_else(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("chroot is root's")
    files = FileSet()
    files.add_program(shutil.which("env") or "/usr/bin/env")
    assert not files.missing
    unpacked(files, tmp_path)
    done = subprocess.run(
        ["chroot", str(tmp_path), "/usr/bin/env", "-i", "WORD=1", "/usr/bin/env"], capture_output=True
    )
    assert done.stdout == b"WORD=1\n", done.stderr


def test_what_is_known_is_left_out(tmp_path: Path) -> None:
    for name in ("same", "other"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("same")
    files = FileSet()
    files.add(tmp_path / "link")
    files.add(tmp_path / "other")
    known = {str(tmp_path / "same"): digest(str(tmp_path / "same")), str(tmp_path / "link"): link_digest("same")}
    known[str(tmp_path / "other")] = "of another content"
    assert unpacked(files, tmp_path / "there", known) == {f"{tmp_path}/other".lstrip("/")}


def test_a_script_brings_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{shutil.which('env')} true\n")
    files = FileSet()
    files.add_program(script)
    assert {str(script), os.path.realpath(shutil.which("env") or "")} <= set(files.files)


def test_a_tree_is_taken_whole_and_a_loop_is_no_danger(tmp_path: Path) -> None:
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "file").write_text("x")
    (tmp_path / "tree" / "below" / "up").symlink_to("..")
    (tmp_path / "tree" / "gone").symlink_to("nothing")
    files = FileSet()
    files.add_tree(tmp_path / "tree")
    assert set(files.files) == {f"{tmp_path}/tree/below/file"}
    assert set(files.directories) == {f"{tmp_path}/tree", f"{tmp_path}/tree/below"}
    with pytest.raises(OSError, match="Too many levels"):
        (tmp_path / "self").symlink_to("self")
        files.add(tmp_path / "self")
