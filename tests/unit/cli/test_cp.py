"""How `wherry cp` packs files, and how it unpacks an archive that a node sends, whatever that is."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from wherry.cli.cp import _Packer, _Stream, _unpack, _Unpacker


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    out.seek(0)
    return out


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    about = tarfile.TarInfo(name)
    about.type, about.linkname, about.mode = kind, link, 0o750 if kind == tarfile.DIRTYPE else 0o640
    return about, content


def take(target: Path, *members: tuple[tarfile.TarInfo, bytes]) -> _Unpacker:
    into = _Unpacker(PurePosixPath("top"), target)
    with tarfile.open(fileobj=archive(*members), mode="r|") as tar:
        for one in tar:
            into.take(tar, one)
    return into


TOP = member("./top", tarfile.DIRTYPE)


def test_a_tree_comes_as_it_is(tmp_path: Path) -> None:
    into = take(
        tmp_path / "here",
        TOP,
        member("./top/file", content=b"text"),
        member("./top/hard", tarfile.LNKTYPE, "./top/file"),
        member("./top/soft", tarfile.SYMTYPE, "/etc/passwd"),
        member("./top/fifo", tarfile.FIFOTYPE),
    )
    here = tmp_path / "here"
    assert (into.files, into.size, (here / "hard").read_text()) == (1, 4, "text")
    assert os.readlink(here / "soft") == "/etc/passwd" and not (here / "fifo").exists()
    assert (here / "file").stat().st_mode & 0o777 == 0o640 & ~_umask()
    assert here.stat().st_mode & 0o777 == 0o750 & ~_umask(), "nobody else may enter it"
    take(tmp_path / "one", member("./top", content=b"file"))
    assert (tmp_path / "one").read_text() == "file"


@pytest.mark.parametrize(
    "evil",
    [
        (member("/etc/evil", content=b"x"),),
        (member("../evil", content=b"x"),),
        (member("./top/../../evil", content=b"x"),),
        (member("./other", content=b"x"),),
        (TOP, member("./top/link", tarfile.SYMTYPE, ".."), member("./top/link/evil", content=b"x")),
        (TOP, member("./top/link", tarfile.LNKTYPE, "/etc/passwd")),
        (TOP, member("./top/s", tarfile.SYMTYPE, "/etc/passwd"), member("./top/h", tarfile.LNKTYPE, "./top/s")),
        (member("./top/file", content=b"x"),),
    ],
)
def test_nothing_is_written_elsewhere(tmp_path: Path, evil: tuple[tuple[tarfile.TarInfo, bytes], ...]) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(tarfile.TarError):
        take(tmp_path / "in" / "here", *evil)
    assert not (tmp_path / "evil").exists() and not (tmp_path / "in" / "evil").exists()


def test_an_archive_that_is_cut_is_not_whole(tmp_path: Path) -> None:
    whole = archive(TOP, member("./top/a", content=bytes(2048)), member("./top/b", content=b"x")).getvalue()
    for number, end in enumerate((512, 512 + 512 + 1000, 512 + 512 + 2048, 512 + 512 + 2048 + 512 + 512 + 512)):
        with pytest.raises(tarfile.TarError):
            _unpack(_Stream(iter([whole[:end]])), _Unpacker(PurePosixPath("top"), tmp_path / f"cut{number}"))
    into = _Unpacker(PurePosixPath("top"), tmp_path / "whole")
    _unpack(_Stream(iter([whole[:700], whole[700:]])), into)
    assert into.files == 2


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    with open(tmp_path / "top" / "hole", "wb") as file:
        file.truncate(1 << 30)
    made = subprocess.run(["tar", "-cSf", "-", "-C", tmp_path, "./top"], capture_output=True, check=True).stdout
    with pytest.raises(tarfile.TarError, match="sparse"):
        _unpack(_Stream(iter([made])), _Unpacker(PurePosixPath("top"), tmp_path / "here"))
    assert not (tmp_path / "here" / "hole").exists()


def test_a_link_that_is_there_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "here").symlink_to(tmp_path / "kept")
    take(tmp_path / "here", member("./top", content=b"new"))
    assert (tmp_path / "kept").read_text() == "kept" and (tmp_path / "here").read_text() == "new"


def test_what_is_packed_has_its_new_name_and_no_owner(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").write_bytes(b"123")
    os.mkfifo(tmp_path / "a" / "fifo")
    reading, writing = os.pipe()
    packer = _Packer(str(tmp_path / "a"), "z", os.fdopen(writing, "wb"))
    packer.start()
    with os.fdopen(reading, "rb") as file, tarfile.open(fileobj=file, mode="r|") as tar:
        found = {one.name: (one.uid, one.uname) for one in tar}
    packer.join()
    assert found == dict.fromkeys(("z", "z/b", "z/b/f"), (0, "")) and (packer.files, packer.size) == (1, 3)
    assert packer.error is None


def test_pieces_are_read_as_a_file() -> None:
    stream = _Stream(iter([b"ab", b"cdef"]))
    assert [stream.read(3), stream.read(9), stream.read(1)] == [b"abc", b"def", b""] and stream.taken == 6


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask
