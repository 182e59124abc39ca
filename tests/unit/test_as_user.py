"""Acting on files with a user's rights, and which directories of a user are bound into nodes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakeworld import fabric_spec

from wherry.cluster.binds import binds_of
from wherry.fabric.fake import FakeFabric
from wherry.model.owner import Owner
from wherry.node.as_user import as_user, is_closed

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
