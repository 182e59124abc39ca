"""Files for guests on a real host, written through libvirt's storage API, the only access to its disk.

    DIRECTORY/PREFIX-kernel-SHA256          kernels, kept for the instance's next guest
    DIRECTORY/PREFIX-kernel-SHA256.whole    marks the kernel as complete
    DIRECTORY/DOMAIN.initrd                 a guest's RAM disk, only while the guest is being started

Invariants: every name begins with the instance's prefix, so instances never write or remove each other's files; a
kernel is used only when it is complete; a RAM disk, which contains the node's key, is readable by root only, or by the
user to whom libvirt gives it for the guest (QEMU may run as another user).
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
    """The directory on one host, for the instance with this `prefix`. For one caller at a time."""

    def __init__(self, connection: Any, prefix: str) -> None:
        self._connection, self._prefix = connection, prefix
        self._pool = _find_pool(connection)

    def kernel(self, file: Path) -> str:
        """Path on the host of the kernel `file`, which is uploaded if it is missing there."""
        with open(file, "rb") as opened:
            name = f"{self._prefix}-kernel-{hashlib.file_digest(opened, 'sha256').hexdigest()}"
        if self._volume(f"{name}.whole") is None:
            self.put(name, _parts(file), file.stat().st_size)
            self.put(f"{name}.whole", [b"\n"], 1)
        return f"{_DIRECTORY}/{name}"

    def initrd(self, domain: str, file: Path, more: bytes) -> str:
        """Uploads the RAM disk of a guest, `file` followed by `more`; its path on the host."""
        self.put(f"{domain}.initrd", [*_parts(file), more], file.stat().st_size + len(more), "0600")
        return f"{_DIRECTORY}/{domain}.initrd"

    def drop_initrd(self, domain: str) -> None:
        """Removes the RAM disk of a guest, if it exists."""
        self.drop(f"{domain}.initrd")

    def put(self, name: str, parts: Iterable[bytes], size: int, mode: str = "0644") -> None:
        """Writes a file of `size` bytes; an existing one is replaced."""
        self.drop(name)
        root = Element("volume")
        SubElement(root, "name").text = name
        SubElement(root, "capacity", unit="bytes").text = str(size)
        target = SubElement(root, "target")
        SubElement(target, "format", type="raw")
        _owned_by_root(target, mode)
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
        """Removes a file, if it exists."""
        _delete(self._pool, name)

    def _volume(self, name: str) -> Any | None:
        libvirt = libvirt_client.load()
        try:
            return self._pool.storageVolLookupByName(name)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_VOL:
                raise
            return None


def _delete(pool: Any, name: str) -> None:
    """Removes a file unless another caller did that first."""
    libvirt = libvirt_client.load()
    try:
        pool.storageVolLookupByName(name).delete(0)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_VOL:
            raise


def drop_initrd(connection: Any, domain: str) -> None:
    """Removes the RAM disk of a guest, if a killed daemon left one."""
    _drop(connection, lambda name: name == f"{domain}.initrd")


def drop_all(connection: Any, prefix: str) -> None:
    """Removes every file whose name begins with `prefix`."""
    _drop(connection, lambda name: name.startswith(prefix))


def _drop(connection: Any, ours: Callable[[str], bool]) -> None:
    pool = _find_pool(connection)
    for name in filter(ours, pool.listVolumes()):
        _delete(pool, name)


def _find_pool(connection: Any) -> Any:
    """The storage pool of the directory, created if necessary: a reboot of the host removes it, but not the files."""
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
    _owned_by_root(target, "0711")
    flags = libvirt.VIR_STORAGE_POOL_CREATE_WITH_BUILD
    try:
        return connection.storagePoolCreateXML(tostring(root, encoding="unicode"), flags)
    except libvirt.libvirtError as error:
        try:
            return connection.storagePoolLookupByName(_POOL)  # another instance created it meanwhile
        except libvirt.libvirtError:
            raise error from None


def _owned_by_root(target: Element, mode: str) -> None:
    """Adds the permissions element."""
    permissions = SubElement(target, "permissions")
    for tag, text in (("mode", mode), ("owner", "0"), ("group", "0")):
        SubElement(permissions, tag).text = text


def _parts(file: Path) -> Iterator[bytes]:
    with open(file, "rb") as opened:
        while part := opened.read(_PART):
            yield part
