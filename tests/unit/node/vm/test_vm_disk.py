"""Disks of virtual machines: the choice of an image, the seed of a node, and the files that a disk is sent."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from pydantic import SecretStr

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.model.owner import Owner
from wherry.model.records import AGENT_VERSION, Node
from wherry.model.spec.cluster import ClusterSpec, NicSpec
from wherry.model.spec.parse import parse
from wherry.node.protocol import Placement
from wherry.node.vm import cloud_init, disk
from wherry.node.vm.disk import DiskImage, NodeDisk
from wherry.node.vm.emulated import driver
from wherry.node.vm.emulated.domain_xml import describe
from wherry.node.vm.emulated.driver import _require_driver

USER, ROOT = Owner(uid=1000, gid=1000, home="/", cwd="/"), Owner(uid=0, gid=0, home="/", cwd="/")
_AS_USER = pytest.mark.skipif(os.geteuid() != 0, reason="to look with a user's rights needs root")


def _owned(path: Path) -> Path:
    os.chown(path, USER.uid, USER.gid)
    return path


def _writable(path: Path) -> Path:
    path.chmod(0o664)
    return path


def qcow2(path: Path, version: int = 3, backing: int = 0, size: int = 1 << 30, features: int = 0) -> Path:
    """The first bytes of such a file."""
    header = b"QFI\xfb" + struct.pack(">IQIIQ", version, backing, 0, 16, size)
    path.write_bytes(header.ljust(72, b"\0") + struct.pack(">Q", features))
    return path


def place(nic: NicSpec | None = None) -> Placement:
    node = Node(
        name="c-1", cluster="c", index=1, host="a1", address="10.77.1.2", mac="02:77:00:00:01:01", kind="vm", cpus=2,
        memory=512 << 20,
    )  # fmt: skip
    return Placement(
        node=node, host="a1", netns="", cgroup="", key=SecretStr("ab" * 32), user="1000:1000:", device="p1.1",
        image="/srv/x.qcow2", nic=nic or NicSpec(), binds=("/home/o'brien",),
    )  # fmt: skip


def test_an_image(tmp_path: Path) -> None:
    assert disk.inspect(qcow2(tmp_path / "x")) == DiskImage(tmp_path / "x", 1 << 30)
    assert disk.inspect(qcow2(tmp_path / "old", version=2, features=0xFF)).size == 1 << 30


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda path: None, Code.NOT_FOUND, "No such file"),
        (lambda path: path.mkdir(), Code.INVALID_FILE, "not a qcow2"),
        (lambda path: os.mkfifo(path), Code.INVALID_FILE, "not a qcow2"),
        (lambda path: path.write_bytes(b"QFI\xfb"), Code.INVALID_FILE, "not a qcow2"),
        (lambda path: path.write_bytes(bytes(1 << 20)), Code.INVALID_FILE, "not a qcow2"),
        (lambda path: qcow2(path, backing=4096), Code.INVALID_FILE, "to another file"),
        (lambda path: qcow2(path, features=4), Code.INVALID_FILE, "to another file"),
    ],
)
def test_what_is_no_image(tmp_path: Path, make: Any, code: Code, words: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(Refused) as caught:
        disk.inspect(tmp_path / "x")
    assert caught.value.code == code and words in caught.value.why


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory of root's that every user can pass, and below which root alone can change anything."""
    with tempfile.TemporaryDirectory(prefix="wherry-", dir="/var/lib") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@_AS_USER
def test_a_user_names_only_what_root_alone_can_change(tmp_path: Path, open_to_all: Path) -> None:
    """QEMU opens it with other rights than the user's, and later than we look."""
    path = qcow2(tmp_path / "x")
    assert disk.find(path, ROOT).path == path
    for refused in (path, _owned(qcow2(open_to_all / "owned")), _writable(qcow2(open_to_all / "writable"))):
        with pytest.raises(Refused) as caught:
            disk.find(refused, USER)
        assert caught.value.code == Code.PERMISSION
    assert disk.find(qcow2(open_to_all / "x"), USER).path == open_to_all / "x"


@_AS_USER
def test_a_link_of_the_user_is_no_image(open_to_all: Path) -> None:
    """Whatever it leads to now: before QEMU opens it he could point it to a file that QEMU may read and he may not."""
    image, his = qcow2(open_to_all / "x"), open_to_all / "his"
    his.mkdir()
    his.chmod(0o777)
    (his / "of-root").symlink_to(image)
    (his / "own").symlink_to(image)
    (open_to_all / "own").symlink_to(image)
    (open_to_all / "by-his").symlink_to(his / "own")
    (open_to_all / "directory").symlink_to(his)
    for link in (his / "own", open_to_all / "own"):
        os.lchown(link, USER.uid, USER.gid)
    names = ("his/own", "his/of-root", "own", "by-his", "directory/own")
    for name in names:
        with pytest.raises(Refused, match="is not safe to use") as caught:
            disk.find(open_to_all / name, USER)
        assert caught.value.code == Code.PERMISSION, name


@_AS_USER
def test_a_link_of_roots_is_followed_once(open_to_all: Path) -> None:
    """QEMU's argument and a node's overlay name the file."""
    image = qcow2(open_to_all / "debian-12.qcow2")
    (open_to_all / "debian.qcow2").symlink_to("../" + open_to_all.name + "/debian-12.qcow2")
    (open_to_all / "shelf").symlink_to(open_to_all)
    for owner in (USER, ROOT):
        assert disk.find(open_to_all / "shelf" / "debian.qcow2", owner).path == image
    (open_to_all / "round").symlink_to("round")
    with pytest.raises(Refused, match="cannot be read") as caught:
        disk.find(open_to_all / "round", USER)
    assert caught.value.code == Code.NOT_FOUND


@_AS_USER
def test_a_machine_gets_the_file_that_its_image_leads_to(
    open_to_all: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overlay and description have the path without links, so nothing is resolved again when QEMU opens it."""
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    image = qcow2(open_to_all / "x")
    (open_to_all / "link").symlink_to(image)
    placement = place().model_copy(update={"image": str(open_to_all / "link")})
    found, files = driver._image(placement.image, placement.owner), NodeDisk(Instance("x"), "c-1")
    assert found == DiskImage(image, 1 << 30)
    words: list[str] = []
    monkeypatch.setattr(disk, "run", lambda *run: words.extend(run))
    files.make(found)
    assert words[words.index("-b") + 1] == str(image)
    xml = fromstring(describe(Instance("x"), placement, found, True, tmp_path / "console", files))
    assert xml.find("devices/disk/backingStore/source").get("file") == str(image)  # type: ignore[union-attr]


def test_the_image_is_the_end_of_the_chain(tmp_path: Path) -> None:
    files = NodeDisk(Instance("x"), "c-1")
    image = DiskImage(Path("/srv/x.qcow2"), 1 << 30)
    nic = NicSpec(queues=2, checksum_offload=False)
    xml = fromstring(describe(Instance("x"), place(nic), image, True, tmp_path / "console", files))
    written, given = xml.findall("devices/disk")
    assert written.find("backingStore/source").attrib == {"file": "/srv/x.qcow2"}  # type: ignore[union-attr]
    assert written.find("backingStore/backingStore") is not None
    assert given.find("readonly") is not None and xml.find("os/kernel") is None and xml.find("sysinfo") is None
    driver = xml.find("devices/interface/driver")
    assert driver is not None and driver.attrib == {"name": "qemu", "queues": "2"}
    assert driver.find("host").get("csum") == "off"  # type: ignore[union-attr]


def test_a_disk_that_another_machine_has_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a killed move may leave one at another host: `stop` keeps its disk."""
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    files = NodeDisk(Instance("x"), "c-1")
    files.directory.mkdir(parents=True)
    (files.directory / "disk.qcow2").write_bytes(b"its data")
    with pytest.raises(Failed, match="the disk of node c-1 is in use") as failed:
        files.make(DiskImage(Path("/images/debian.qcow2"), 1 << 30))
    assert failed.value.code == Code.WRONG_STATE and "guest=c-1," in failed.value.next
    assert files.overlay.read_bytes() == b"its data"


def test_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files for cloud-init; no text of a user's is a part of a command's word."""
    seen: dict[str, str] = {}

    def keep(program: str, *words: str) -> None:
        seen.update({file.name: file.read_text() for file in Path(words[-1]).iterdir() if file.name[0] not in "gi"})

    monkeypatch.setattr(cloud_init, "run", keep)
    cloud_init.write_seed(tmp_path / "seed.iso", place(), "some-id", ["/var/lib/wherry/x/bin", "/home/o'brien"])
    assert "wherry.name=c-1 wherry.address=10.77.1.2/24" in seen["description"]
    assert seen["key"] == "ab" * 32 and "ab" * 32 not in seen["user-data"] + seen["description"]
    network = json.loads(seen["network-config"])["ethernets"]["eth0"]
    assert (network["match"], network["addresses"]) == ({"macaddress": "02:77:00:00:01:01"}, ["10.77.1.2/24"])
    head, _, told = seen["user-data"].partition("\n")
    commands = json.loads(told)["runcmd"]
    assert head == "#cloud-config" and commands[-1] == ["/run/wherry/guest", "--join", "/run/wherry"]
    assert [*commands[-2][:-1]] == ["install", "-d", "-o", "1000", "-g", "1000", "-m", "0755"]
    assert commands[-2][-1] == "/home/o'brien"
    assert any("kernel/panic" in word for command in json.loads(told)["bootcmd"] for word in command)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look as another user")
def test_an_image_that_qemu_cannot_read_is_refused() -> None:
    with tempfile.TemporaryDirectory(prefix="wherry-") as name:
        top = Path(name)
        top.chmod(0o755)
        image = qcow2(top / "x")
        image.chmod(0o644)
        disk.require_readable(image)
        for closed, mode in ((image, 0o600), (top, 0o700)):
            before = closed.stat().st_mode
            closed.chmod(mode)
            with pytest.raises(Refused, match="QEMU cannot read the image") as error:
                disk.require_readable(image)
            assert error.value.code == Code.PERMISSION and f"chmod o+r {image}" in error.value.next
            closed.chmod(before)


# A network adapter that an image cannot drive is refused before a machine boots without network.


def test_an_adapter_without_a_driver_in_the_image_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    image = {"name": "default", "digest": "0", "built": 0.0, "kernel": "6", "packages": {}, "mpi": [], "bytes": 1}
    record = tmp_path / "images" / "default" / "image.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(image | {"agent": AGENT_VERSION}))
    old = {"kind": "vm", "name": "c", "nodes": 1, "nic": {"model": "pcnet"}}
    flavor = parse(ClusterSpec, old, "FILE").flavor(0)
    with pytest.raises(Refused, match="no driver for pcnet") as refused:
        _require_driver(flavor)
    assert (refused.value.code, refused.value.next) == (Code.UNSUPPORTED, "wherry image build")
    _require_driver(parse(ClusterSpec, old | {"nic": {"model": "e1000e"}}, "FILE").flavor(0))
    record.write_text(json.dumps(image | {"agent": AGENT_VERSION, "adapters": ["virtio", "pcnet"]}))
    _require_driver(flavor)
