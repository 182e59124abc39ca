"""Disks of virtual machines: a cloud image that nodes only read, and for each node what it writes, on top of it.

    FILE.qcow2                               named by the cluster's file; the same on every host
    /var/lib/wherry/INSTANCE/disks/NODE/     on storage that every host sees, so a move copies no disk
        disk.qcow2                           what the node wrote; its backing file is FILE.qcow2
        seed.iso                             what cloud-init is told (seed.py)

Invariant: a node's directory is there as long as one of its QEMUs may be, and a node that is started anew begins with
the image as it is. An image stands alone: QEMU opens no file that an image names.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.model.owner import Owner
from wherry.node.as_user import as_user
from wherry.node.container.mounts import remove_tree
from wherry.node.vm.emulated.unprivileged import USER

_MAGIC = b"QFI\xfb"
_FIRST = 80
"""Bytes of a header (QEMU's docs/interop/qcow2.txt), all numbers big-endian: version at 4, place of the backing file's
name at 8, size of the disk at 24, and after version 2 incompatible features at 72."""
_FIELDS = ((">I", 4), (">Q", 8), (">Q", 24), (">Q", 72))
_OTHER_FILE = 1 << 2
"""Incompatible feature: the data is in another file."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SECONDS = 60.0


@dataclass(frozen=True)
class DiskImage:
    """A qcow2 file to boot from, and the bytes of the disk in it."""

    path: Path
    size: int


def inspect(path: Path) -> DiskImage:
    """The image at `path`. NOT_FOUND, or INVALID_FILE when it is no qcow2 that stands alone."""
    what, remedy = f"{path} is no image for virtual machines", f"qemu-img convert -O qcow2 {path} IMAGE.qcow2"
    try:
        header = _first_bytes(path)
    except OSError as error:
        code = Code.PERMISSION if isinstance(error, PermissionError) else Code.NOT_FOUND
        raise Refused(
            code, f"the image {path} cannot be read", os.strerror(error.errno or 0), f"ls -l {path}"
        ) from None
    if len(header) < _FIRST or header[:4] != _MAGIC:
        raise Refused(Code.INVALID_FILE, what, "it is not a qcow2 file", remedy)
    version, backing, size, features = (struct.unpack_from(f, header, at)[0] for f, at in _FIELDS)
    if backing or (version > 2 and features & _OTHER_FILE):
        raise Refused(Code.INVALID_FILE, what, "it is a part of one: the rest is in another file", remedy)
    return DiskImage(path, size)


def _first_bytes(path: Path) -> bytes:
    """Of a file; none of a directory or a pipe, which would wait."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(file, _FIRST, 0) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)


def require_programs() -> None:
    """Refused when this machine cannot make the disks of a node."""
    for program in ("qemu-img", "genisoimage"):
        if not shutil.which(program):
            raise Refused(Code.UNSUPPORTED, f"this machine has no {program}", "disks need it", "make setup-vm")


def require_safe(path: Path, owner: Owner) -> None:
    """Refuses an image that is not there, is none, or that its user could exchange for one that only QEMU may read."""
    as_user(owner, lambda: inspect(path))
    if owner.uid == 0:
        return
    real = Path(os.path.realpath(path))
    for part in (real, *real.parents):
        about = os.lstat(part)
        if about.st_uid != 0 or about.st_mode & _OTHERS_WRITE:
            why = f"others than root can change {part}"
            raise Refused(Code.PERMISSION, f"the image {path} is not safe to use", why, "have root keep it elsewhere")


def require_readable(path: Path) -> None:
    """Refuses an image that the user of QEMU cannot open."""
    try:
        as_user(Owner(uid=USER, gid=USER, home="/", cwd="/"), lambda: inspect(path))
    except Refused as error:
        why = f"it runs as uid {USER}, to which the file or a directory above it is closed"
        remedy = f"chmod o+r {path}, and o+x each directory above it"
        raise Refused(error.code, f"QEMU cannot read the image {path}", why, remedy) from None


class NodeDisk:
    """The files of one node. They need not be there."""

    def __init__(self, instance: Instance, node: str) -> None:
        self.directory = instance.state / "disks" / node

    @property
    def overlay(self) -> Path:
        """What the node writes."""
        return self.directory / "disk.qcow2"

    @property
    def seed(self) -> Path:
        """What cloud-init reads."""
        return self.directory / "seed.iso"

    def make(self, image: DiskImage) -> None:
        """An empty overlay in a directory of its own."""
        self.directory.mkdir(parents=True, mode=0o700)
        # -u: the image was looked at; its size is known, and nothing that it names is opened
        words = ["create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", str(image.path), str(self.overlay)]
        run("qemu-img", *words, str(image.size))

    def remove(self) -> None:
        """Forgets what the node wrote."""
        remove_tree(self.directory)


def run(program: str, *words: str) -> None:
    """Runs a program that makes a file. Failed with its last line."""
    try:
        done = subprocess.run(
            [program, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(Code.TIMED_OUT, f"{program} did not end", f"waited {_SECONDS:.0f} s", "df -h") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise Failed(Code.FAILED, f"{program} failed", lines[-1] if lines else f"exit code {done.returncode}", "df -h")
