"""Disks of virtual machines: which image is taken, what a node's seed says, and which files a disk is sent."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from pydantic import SecretStr

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.model.owner import Owner
from wherry.model.records import Node
from wherry.model.spec.cluster import NicSpec
from wherry.node.protocol import Placement
from wherry.node.vm import cloud_init, disk
from wherry.node.vm.disk import DiskImage, NodeDisk
from wherry.node.vm.emulated.domain_xml import describe


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


@pytest.mark.skipif(os.geteuid() != 0, reason="to look with a user's rights needs root")
def test_a_user_names_only_what_root_alone_can_change(tmp_path: Path) -> None:
    """QEMU opens it as root, and later than we look."""
    user, path = Owner(uid=1000, gid=1000, home="/", cwd="/"), qcow2(tmp_path / "x")
    disk.require_safe(path, user.model_copy(update={"uid": 0}))
    with pytest.raises(Refused) as caught:
        disk.require_safe(path, user)
    assert caught.value.code == Code.PERMISSION


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
    """What cloud-init reads; no text of a user's is a part of a command's word."""
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
