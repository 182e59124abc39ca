"""Images of virtual machines: the RAM disk's format, the kernel's package, the record."""

from __future__ import annotations

import fcntl
import io
import lzma
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import images_directory
from wherry.model.records import AGENT_VERSION, Image
from wherry.node.vm.image import build, cpio, kernel
from wherry.node.vm.image import build as image_build
from wherry.node.vm.image import kernel as image_kernel
from wherry.node.vm.image.catalog import find_image, list_images, remove_image

ELF = b"\x7fELF" + bytes(60)


def entries(archive: bytes) -> list[tuple[str, int, bytes]]:
    """Name, mode and content of each entry of a newc archive."""
    found, at = [], 0
    while True:
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        assert archive[at : at + 6] == b"070701"
        name = archive[at + 110 : at + 110 + fields[11] - 1].decode()
        start = at + 110 + fields[11]
        start += -start % 4
        if name == "TRAILER!!!":
            return found
        found.append((name, fields[1], archive[start : start + fields[6]]))
        at = start + fields[6]
        at += -at % 4


def test_archives_hold_what_was_put_in(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(b"12345")
    out = io.BytesIO()
    cpio.write(out, [cpio.directory("sys"), cpio.file("init", tmp_path / "content", 0o755), cpio.file("a/b", b"")])
    assert entries(out.getvalue()) == [("sys", 0o40755, b""), ("init", 0o100755, b"12345"), ("a/b", 0o100644, b"")]


def bzimage(payload: bytes) -> bytes:
    """The least kernel of the boot protocol: one sector of set-up code, then the payload 16 bytes on."""
    image = bytearray(2 * 512 + 16) + payload
    image[0x1F1] = 1
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", image, 0x248, 16, len(payload))
    return bytes(image)


def test_the_kernel_is_unpacked() -> None:
    assert image_kernel.unpack(bzimage(lzma.compress(ELF) + struct.pack("<I", len(ELF)))) == ELF
    for wrong in (b"", bytes(4096), bzimage(b"????"), bzimage(lzma.compress(b"no ELF file"))):
        with pytest.raises(Failed):
            image_kernel.unpack(wrong)


def test_the_list_of_modules_is_what_they_say() -> None:
    said = b"\x7fELF\0license=GPL\0alias=pci:v00001AF4d*sv*\0alias=of:N*\0depends=virtio-ring,virtio\0"
    names = {*image_kernel._ALWAYS, *image_kernel._DEVICES}
    lines = image_kernel.module_list({name: b"\0depends=\0" for name in names} | {"virtio_pci": said}).splitlines()
    assert "module virtio_pci virtio_ring virtio" in lines and "module overlay" in lines
    assert "always squashfs" in lines
    assert [line for line in lines if line.startswith("alias")] == ["alias pci:v00001AF4d*sv* virtio_pci"]


def test_an_image_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    with pytest.raises(Refused) as error:
        find_image()
    assert (error.value.code, error.value.next) == (Code.NOT_FOUND, "wherry image build")
    assert list_images() == []
    (tmp_path / "images" / "half").mkdir(parents=True)
    (tmp_path / "images" / "half" / "image.json").write_text("{}")
    assert list_images() == []
    with pytest.raises(Refused):
        remove_image("half")


def test_an_image_is_found_and_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    record = image_build.Image(
        name="one", digest="d", built=1.0, kernel="6.1", packages={}, mpi=("MPICH",), bytes=1, agent=AGENT_VERSION
    )
    (images_directory() / "one").mkdir(parents=True)
    (images_directory() / "one" / "image.json").write_text(record.model_dump_json())
    assert list_images() == [record]
    assert find_image("one").kernel == tmp_path / "images" / "one" / "kernel"
    (images_directory() / "one" / "image.json").write_text(record.model_dump_json(exclude={"agent"}))
    with pytest.raises(Refused, match="another version") as error:
        find_image("one")
    assert error.value.next == "wherry image build one"
    remove_image("one")
    assert list_images() == []


@pytest.mark.parametrize(("name", "programs"), [("../x", ()), ("", ()), ("ok", ("relative",)), ("ok", ("/not/there",))])
def test_what_cannot_be_built_is_refused(name: str, programs: tuple[str, ...]) -> None:
    with pytest.raises(Refused):
        image_build.check(name, programs)


def test_images_are_not_changed_while_another_instance_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They share a directory, and the kernels in it."""
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    record = Image(name="a", digest="1", built=0.0, kernel="6.1", packages={}, mpi=(), programs=(), bytes=1)
    (images_directory() / "a").mkdir(parents=True)
    (images_directory() / "a" / "image.json").write_text(record.model_dump_json())
    with open(images_directory() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for act in (lambda: remove_image("a"), lambda: image_build.build("b", (), print, lambda: None)):
            with pytest.raises(Refused, match="another instance") as refused:
                act()
            assert refused.value.code == Code.WRONG_STATE
    assert [image.name for image in list_images()] == ["a"]
    remove_image("a")
    assert list_images() == []


# A daemon that is killed while it builds an image leaves a directory as large as one: the next build removes it.


def test_what_killed_builds_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    top = images_directory()
    for name in (".default.ab12", ".other-one.cd34", ".gone.removed-0m", ".kernels", "default", "a.b"):
        (top / name / "image").mkdir(parents=True)

    def stop(_programs: object) -> None:
        raise Failed("FAILED", "as far as that")  # type: ignore[arg-type]

    monkeypatch.setattr(build, "collect", stop)
    with pytest.raises(Failed, match="as far as that"):
        build.build("new", (), lambda _: None, lambda: None)
    assert sorted(path.name for path in top.iterdir()) == [".kernels", ".lock", "a.b", "default"]


# The download of an image's kernel takes minutes on a slow network, and is cancelled at once.


def program(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt of our own, whose download never ends."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(kernel, "_CHECK_SECONDS", 0.01)
    program(tmp_path, "apt-cache", "echo 'Depends: linux-image-9'; echo 'Version: 9-1'")
    program(tmp_path, "apt-get", f"echo $$ >{tmp_path}/pid; exec sleep 3600")
    return tmp_path


def test_it_is_cancelled(tools: Path) -> None:
    def check() -> None:
        if (tools / "pid").exists():
            raise Failed(Code.CANCELLED, "image build was cancelled")

    with pytest.raises(Failed, match="was cancelled"):
        kernel.find_kernel(tools / "cache", lambda _: None, check)
    assert not Path(f"/proc/{(tools / 'pid').read_text().strip()}").exists()
    assert list((tools / "cache").iterdir()) == []


def test_one_that_does_not_end_is_given_up(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(kernel, "time", clock)

    def check() -> None:
        clock.now += 200.0 if (tools / "pid").exists() else 0.0

    with pytest.raises(Failed) as ended:
        kernel.find_kernel(tools / "cache", lambda _: None, check)
    assert ended.value.code is Code.TIMED_OUT and "apt-get -q did not end" in ended.value.what


def test_a_failure_has_its_last_line(tools: Path) -> None:
    program(tools, "apt-get", "echo first >&2; echo 'E: no such package' >&2; exit 100")
    with pytest.raises(Failed) as ended:
        kernel.find_kernel(tools / "cache", lambda _: None, lambda: None)
    assert ended.value.why == "E: no such package"
