"""Acting on files with a user's rights, and which directories of a user are bound into nodes."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakeworld import fabric_spec

from wherry.base.errors import Failed
from wherry.base.safe_open import open_regular
from wherry.cluster.binds import binds_of
from wherry.fabric.fake import FakeFabric
from wherry.model.owner import Owner
from wherry.node.as_user import as_user, is_closed
from wherry.node.container import mounts
from wherry.node.container.mounts import MS_NOSUID, Layout, mount, mounted, unmount_below
from wherry.service.credentials import peer_of

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
NOBODY = Owner(uid=65534, gid=65534, groups=(65534,), home="/", cwd="/")


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory of root's that everybody can reach."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="wherry-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@needs_root
def test_what_the_user_may_not_read_stays_closed(top: Path) -> None:
    secret = top / "secret"
    secret.write_text("root's")
    secret.chmod(0o640)
    with pytest.raises(PermissionError):
        as_user(NOBODY, secret.read_text)
    assert secret.read_text() == "root's", "the caller's thread keeps its rights"
    os.chown(secret, 0, 4242)
    assert as_user(NOBODY.model_copy(update={"groups": (4242,)}), secret.read_text) == "root's"
    with pytest.raises(PermissionError):
        as_user(NOBODY.model_copy(update={"groups": ()}), secret.read_text)
    made = top / "open" / "made"
    made.parent.mkdir()
    made.parent.chmod(0o777)
    as_user(NOBODY, made.touch)
    assert (made.stat().st_uid, made.stat().st_gid) == (65534, 65534)


@needs_root
def test_a_directory_is_closed_by_itself_and_by_those_above(top: Path) -> None:
    inner = top / "outer" / "inner"
    inner.mkdir(parents=True)
    for outer, own, closed in ((0o711, 0o711, False), (0o711, 0o700, True), (0o700, 0o755, True), (0o755, 0o744, True)):
        inner.parent.chmod(outer)
        inner.chmod(own)
        assert is_closed(inner, NOBODY) == closed
        assert not is_closed(inner, NOBODY.model_copy(update={"uid": 0}))
    link = top / "link"
    link.symlink_to(inner)
    assert is_closed(link, NOBODY)
    assert not is_closed(top / "missing", NOBODY)


def bound(cwd: Path | str) -> tuple[str, ...]:
    fabric = FakeFabric(fabric_spec())
    fabric.up()
    return binds_of(fabric, fabric.hosts(), NOBODY.model_copy(update={"cwd": str(cwd)}))


@needs_root
def test_a_closed_directory_is_not_bound(top: Path) -> None:
    inner = top / "closed" / "inner"
    inner.mkdir(parents=True)
    inner.chmod(0o777)
    inner.parent.chmod(0o700)
    assert bound(inner) == bound(inner.parent) == ()
    inner.parent.chmod(0o711)
    assert bound(inner) == (str(inner),)


@needs_root
@pytest.mark.parametrize("cwd", ["relative", "/run/wherry", "/run/wherry/main", "/tmp\nkey", "/proc/self", "/dev/shm"])
def test_what_no_user_can_have_bound(cwd: str) -> None:
    assert bound(cwd) == ()


@needs_root
def test_a_link_is_followed_with_the_users_rights_and_its_end_is_bound(top: Path) -> None:
    link = top / "link"
    link.symlink_to("/root")
    assert bound(link) == ()
    link.unlink()
    link.symlink_to("/usr/lib")
    assert bound(link) == ("/usr/lib",)


@needs_root
def test_nothing_is_bound_below_a_name_that_its_user_can_change() -> None:
    with tempfile.TemporaryDirectory(dir="/srv", prefix="wherry-") as name:
        top = Path(name)
        top.chmod(0o755)
        own = top / "own" / "work"
        own.mkdir(parents=True)
        assert bound(own) == (str(own),), "root's all the way"
        os.chown(own, NOBODY.uid, NOBODY.gid)
        assert bound(own) == (str(own),), "its name is root's"
        os.chown(own.parent, NOBODY.uid, NOBODY.gid)
        assert bound(own) == (str(own.parent),)
        top.chmod(0o1777)
        assert bound(own) == (name,)
        os.chown(own.parent, 0, 0)
        assert bound(own) == (str(own),), "the sticky bit keeps root's names"
        top.chmod(0o777)
        assert bound(own) == (name,)


@needs_root
def test_a_name_that_comes_and_goes_is_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent when its permissions are read, there when it is resolved: its meaning later is uncertain."""
    with tempfile.TemporaryDirectory(dir="/srv", prefix="wherry-") as name:
        top = Path(name)
        top.chmod(0o1777)
        work = top / "me" / "work"
        work.mkdir(parents=True)
        os.chown(work.parent, NOBODY.uid, NOBODY.gid)
        look = os.lstat

        def absent(path: str, **more: Any) -> os.stat_result:
            if path == str(work.parent):
                raise FileNotFoundError(path)
            return look(path, **more)

        with monkeypatch.context() as patch:
            patch.setattr(os, "lstat", absent)
            assert bound(work) == ()
        assert bound(work) == (name,)


@needs_root
def test_a_node_is_shown_no_directory_whose_name_its_user_can_change(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/srv", prefix="wherry-") as name:
        top = Path(name)
        top.chmod(0o755)
        work = top / "me" / "work"
        work.mkdir(parents=True)
        layout = Layout(tmp_path, NOBODY, (str(work),))
        os.close(layout.open_directory(str(work)))
        os.chown(work.parent, NOBODY.uid, NOBODY.gid)
        with pytest.raises(Failed, match="others than root can rename files in"):
            layout.open_directory(str(work))


@needs_root
def test_what_a_user_put_in_the_way_is_not_unmounted(tmp_path: Path) -> None:
    """The mount table names `jobs/mine/x/inner`, and x has become a link to where something else is mounted."""
    for directory in ("jobs/mine/x/inner", "elsewhere/inner"):
        (tmp_path / directory).mkdir(parents=True)
        mount("wherry-test", tmp_path / directory, "tmpfs", MS_NOSUID, "size=64k")
    try:
        real = tmp_path / "jobs" / "mine" / "x"
        real.rename(real.with_name("y"))
        real.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "jobs" / "mine" / "z").mkdir()
        points = [(str(real / "inner"), "tmpfs", ""), *mounted()]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mounts, "mounted", lambda: points)
            unmount_below(tmp_path / "jobs")
        left = [point for point, _, _ in mounted() if point.startswith(str(tmp_path))]
        assert left == [str(tmp_path / "elsewhere" / "inner")]
    finally:
        unmount_below(tmp_path)


@needs_root
def test_a_mount_may_have_any_name(tmp_path: Path) -> None:
    """Also bytes that are no text, spaces, and characters that some programs take for the end of a line."""
    point = os.fsencode(tmp_path) + b"/\xff a\tb\nc\\d\xc2\x85e\x0c"
    os.mkdir(point)
    mount("wherry-test", os.fsdecode(point), "tmpfs", MS_NOSUID, "size=64k")
    try:
        assert (os.fsdecode(point), "tmpfs") in [(name, kind) for name, kind, _ in mounted()]
    finally:
        unmount_below(tmp_path)
    assert os.fsdecode(point) not in [name for name, _, _ in mounted()]


def test_only_plain_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"text"
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "missing", "."):
        with pytest.raises(OSError):
            open_regular(tmp_path / name)


# Users with large numbers, as directory services give them: 32 bits without a sign.


USER, GROUP = 3_000_000_000, 4_000_000_000


@needs_root
def test_a_peer_with_a_large_number_is_itself() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        address = f"\0wherry-test-{os.getpid()}"
        listener.bind(address)
        listener.listen()
        listener.settimeout(30)
        program = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + sys.argv[1]); s.recv(1)"
        words = ["/usr/bin/python3", "-c", program, address[1:]]
        with subprocess.Popen(words, user=USER, group=GROUP, extra_groups=[GROUP], cwd="/"):
            connection, _ = listener.accept()
            with connection:
                peer = peer_of(connection)
    assert (peer.uid, peer.gid, peer.groups) == (USER, GROUP, {GROUP})
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        top, owner = Path(made), peer.owner(None)
        top.chmod(0o755)
        for name, user in (("theirs", USER), ("roots", 0)):
            (top / name).touch(0o600)
            os.chown(top / name, user, user)
        assert as_user(owner, lambda: (top / "theirs").read_bytes()) == b""
        with pytest.raises(PermissionError):
            as_user(owner, lambda: (top / "roots").read_bytes())
