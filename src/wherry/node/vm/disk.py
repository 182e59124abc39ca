"""Disks of virtual machines: a shared read-only cloud image, and a qcow2 overlay for each node.

    FILE.qcow2                               named in the cluster's file; the same on every host
    /var/lib/wherry/INSTANCE/disks/NODE/     visible to every host, so a move copies no disk
        disk.qcow2                           the overlay; its backing file is FILE.qcow2
        seed.iso                             the seed for cloud-init (cloud_init.py)

Invariants: a node's directory exists as long as one of its QEMUs may; a restarted node begins with the unchanged image;
an image refers to no other file, as QEMU would open that with more rights than the user's; for the same reason it is
named by the path without links, which were followed once, and only root can change the directories on the way to it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.base.remedies import setup
from wherry.model.owner import Owner
from wherry.node.as_user import as_user
from wherry.node.container.mounts import remove_tree
from wherry.node.trusted_path import resolved
from wherry.node.vm.qemu_user import QEMU_UID

_MAGIC = b"QFI\xfb"
_FIRST = 80
"""Bytes of a header (QEMU's docs/interop/qcow2.txt), all numbers big-endian: version at 4, place of the backing file's
name at 8, size of the disk at 24, and after version 2 incompatible features at 72."""
_FIELDS = ((">I", 4), (">Q", 8), (">Q", 24), (">Q", 72))
_OTHER_FILE = 1 << 2
"""Incompatible feature: the data is in another file."""
_SECONDS = 60.0


@dataclass(frozen=True)
class DiskImage:
    """A qcow2 file to boot from, and the size of its disk in bytes."""

    path: Path
    size: int


def inspect(path: Path) -> DiskImage:
    """The image at `path`. NOT_FOUND, or INVALID_FILE when it is no qcow2 file or refers to another file."""
    what, remedy = f"{path} is no image for virtual machines", f"qemu-img convert -O qcow2 {path} IMAGE.qcow2"
    try:
        header = _first_bytes(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(header) < _FIRST or header[:4] != _MAGIC:
        raise Refused(Code.INVALID_FILE, what, "it is not a qcow2 file", remedy)
    version, backing, size, features = (struct.unpack_from(f, header, at)[0] for f, at in _FIELDS)
    if backing or (version > 2 and features & _OTHER_FILE):
        raise Refused(Code.INVALID_FILE, what, "it refers to another file with the rest of its data", remedy)
    return DiskImage(path, size)


def _unreadable(path: Path, error: OSError) -> Refused:
    code = Code.PERMISSION if isinstance(error, PermissionError) else Code.NOT_FOUND
    return Refused(code, f"the image {path} cannot be read", os.strerror(error.errno or 0), f"ls -l {path}")


def _first_bytes(path: Path) -> bytes:
    """The header of a regular file; empty for anything else (a pipe would block)."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(file, _FIRST, 0) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)


def require_programs() -> None:
    """Refused when this machine lacks the programs that make a node's disks."""
    for program in ("qemu-img", "genisoimage"):
        if not shutil.which(program):
            raise Refused(Code.UNSUPPORTED, f"this machine has no {program}", "disks need it", setup("setup-vm"))


def find(path: Path, owner: Owner) -> DiskImage:
    """The image that its owner names, by the path without links, which QEMU and a node's overlay get. Refused when it
    is missing or invalid, or when others than root could exchange it for a file that only QEMU may read."""
    if owner.uid == 0:
        return inspect(Path(os.path.realpath(path)))
    try:
        real = as_user(owner, lambda: resolved(str(path)))
    except PermissionError as error:
        if error.errno != errno.EPERM:  # EACCES: his own rights
            raise _unreadable(path, error) from None
        why = f"others than root can change {error.filename}"
        raise Refused(
            Code.PERMISSION, f"the image {path} is not safe to use", why, "ask root to store it elsewhere"
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    return as_user(owner, lambda: inspect(Path(real)))


def require_readable(path: Path) -> None:
    """Refuses an image that the user of QEMU cannot open."""
    try:
        as_user(Owner(uid=QEMU_UID, gid=QEMU_UID, home="/", cwd="/"), lambda: inspect(path))
    except Refused as error:
        why = f"it runs as uid {QEMU_UID}, to which the file or a directory above it is closed"
        remedy = f"chmod o+r {path}, and o+x each directory above it"
        raise Refused(error.code, f"QEMU cannot read the image {path}", why, remedy) from None


class NodeDisk:
    """The disk files of one node; they may not exist."""

    def __init__(self, instance: Instance, node: str) -> None:
        self.directory = instance.state / "disks" / node

    @property
    def overlay(self) -> Path:
        """The file that the node writes to."""
        return self.directory / "disk.qcow2"

    @property
    def seed(self) -> Path:
        """The seed that cloud-init reads."""
        return self.directory / "seed.iso"

    def make(self, image: DiskImage) -> None:
        """Creates the node's directory with an empty overlay. WRONG_STATE when another QEMU of the node has it."""
        try:
            self.directory.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            node = self.directory.name
            what, why = f"the disk of node {node} is in use", f"{self.directory} is there: a QEMU of it runs elsewhere"
            raise Failed(
                Code.WRONG_STATE, what, why, f"end the process that this shows: pgrep -af guest={node},"
            ) from None
        # -u: qemu-img does not open the backing file; it was inspected, and its size is known
        words = ["create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", str(image.path), str(self.overlay)]
        run("qemu-img", *words, str(image.size))

    def remove(self) -> None:
        """Removes the node's directory."""
        remove_tree(self.directory)


def run(program: str, *words: str) -> None:
    """Runs a program that creates a file. Failed with the last line of its error output."""
    try:
        done = subprocess.run(
            [program, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(Code.TIMED_OUT, f"{program} did not end", f"waited {_SECONDS:.0f} s", "df -h") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise Failed(Code.FAILED, f"{program} failed", lines[-1] if lines else f"exit code {done.returncode}", "df -h")
