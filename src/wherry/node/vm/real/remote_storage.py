"""Files for guests on a real host, through libvirt's storage API: all that we can write there.

    DIRECTORY/PREFIX-kernel-SHA256          kernels, kept for the instance's next guest
    DIRECTORY/PREFIX-kernel-SHA256.whole    says that all of the kernel is there
    DIRECTORY/DOMAIN.initrd                 a guest's RAM disk, while it is started

Invariants: every name begins with an instance's prefix, so no two write or remove the same file; a kernel is used only
when it is whole; a RAM disk, which has the node's key, is there while its guest is started only, and only root reads
it, or whom libvirt lets in for the guest (QEMU may run as somebody else).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from wherry.node.vm import libvirt_client

_POOL, _DIRECTORY = "wherry", "/var/lib/libvirt/wherry"
_PART = 1 << 20


class RemoteStorage:
    """The directory at one host, for the instance whose names begin with `prefix`. One caller at a time."""

    def __init__(self, connection: Any, prefix: str) -> None:
        self._connection, self._prefix = connection, prefix
        self._pool = _find_pool(connection)

    def kernel(self, file: Path) -> str:
        """Path at the host of a kernel that is `file` here; copied when it is not there."""
        with open(file, "rb") as opened:
            name = f"{self._prefix}-kernel-{hashlib.file_digest(opened, 'sha256').hexdigest()}"
        if self._volume(f"{name}.whole") is None:
            self.put(name, _parts(file), file.stat().st_size)
            self.put(f"{name}.whole", [b"\n"], 1)
        return f"{_DIRECTORY}/{name}"

    def initrd(self, domain: str, file: Path, more: bytes) -> str:
        """Path at the host of the RAM disk of a guest: `file`, and `more` behind it."""
        self.put(f"{domain}.initrd", [*_parts(file), more], file.stat().st_size + len(more), "0600")
        return f"{_DIRECTORY}/{domain}.initrd"

    def drop_initrd(self, domain: str) -> None:
        """Removes it. Also when it is not there."""
        self.drop(f"{domain}.initrd")

    def put(self, name: str, parts: Iterable[bytes], size: int, mode: str = "0644") -> None:
        """Writes a file of so many bytes; one of that name is replaced."""
        self.drop(name)
        root = Element("volume")
        SubElement(root, "name").text = name
        SubElement(root, "capacity", unit="bytes").text = str(size)
        target = SubElement(root, "target")
        SubElement(target, "format", type="raw")
        _roots(target, mode)
        volume = self._pool.createXML(tostring(root, encoding="unicode"), 0)
        stream, left = self._connection.newStream(0), iter(parts)
        volume.upload(stream, 0, size, 0)
        rest = b""

        def more(_stream: Any, room: int, _opaque: object) -> bytes:
            nonlocal rest
            rest = rest or next(left, b"")
            part, rest = rest[:room], rest[room:]
            return part

        stream.sendAll(more, None)
        stream.finish()

    def drop(self, name: str) -> None:
        """Removes a file. Also when it is not there."""
        if (volume := self._volume(name)) is not None:
            volume.delete(0)

    def _volume(self, name: str) -> Any | None:
        libvirt = libvirt_client.load()
        try:
            return self._pool.storageVolLookupByName(name)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_VOL:
                raise
            return None


def drop_initrd(connection: Any, domain: str) -> None:
    """Removes the RAM disk of a guest, which who was killed has left. Also when it is not there."""
    _drop(connection, lambda name: name == f"{domain}.initrd")


def drop_all(connection: Any, prefix: str) -> None:
    """Removes every file whose name begins so."""
    _drop(connection, lambda name: name.startswith(prefix))


def _drop(connection: Any, ours: Callable[[str], bool]) -> None:
    pool = _find_pool(connection)
    for name in filter(ours, pool.listVolumes()):
        pool.storageVolLookupByName(name).delete(0)


def _find_pool(connection: Any) -> Any:
    """The directory as libvirt has it; it forgets that when the host starts anew, and the files stay."""
    libvirt = libvirt_client.load()
    try:
        return connection.storagePoolLookupByName(_POOL)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_POOL:
            raise
    root = Element("pool", type="dir")
    SubElement(root, "name").text = _POOL
    target = SubElement(root, "target")
    SubElement(target, "path").text = _DIRECTORY
    _roots(target, "0711")
    flags = libvirt.VIR_STORAGE_POOL_CREATE_WITH_BUILD
    return connection.storagePoolCreateXML(tostring(root, encoding="unicode"), flags)


def _roots(target: Element, mode: str) -> None:
    """It is root's."""
    permissions = SubElement(target, "permissions")
    for tag, text in (("mode", mode), ("owner", "0"), ("group", "0")):
        SubElement(permissions, tag).text = text


def _parts(file: Path) -> Iterator[bytes]:
    with open(file, "rb") as opened:
        while part := opened.read(_PART):
            yield part
