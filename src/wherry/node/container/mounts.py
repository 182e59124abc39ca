"""Mounts of a container node at a host, and their names in CRIU's images.

A placement has one directory, a tmpfs:

    PLACE/              tmpfs, mode 0700
      private/          moved with the node: tmp run dev shm etc
      arriving/         the same files by numbers; during a move only
      disk/             the node's disk, if it has one: files, its /tmp, and arriving
      binds/0 1 …       the user's directories, opened with the user's rights
      root/             read-only bind of /, the node's root
      images/           tmpfs for CRIU's images; during a move only
      sys/              sysfs of the node's network namespace
      cgroup/           mount points of its cgroups (shown_cgroups)
      empty/            what masked directories show after a move

Invariants: everything mounted below the instance's run directory is ours, so `unmount_below` removes it by path alone;
a mount inside a node permits nothing that the host's mount forbids.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from wherry.base.errors import Code, Failed
from wherry.model import host_memory
from wherry.model.accounts import HIDDEN, NODE_HOME, NODE_USER, is_account
from wherry.model.owner import Owner
from wherry.node.as_user import as_user
from wherry.node.container import shown_cgroups
from wherry.node.container.disk import Disk
from wherry.node.container.mount_kinds import SHARED
from wherry.node.netns_socket import in_netns
from wherry.node.trusted_path import is_trusted, trusted_path

_libc = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 1 << 18
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
_ESCAPED = re.compile(rb"\\([0-7]{3})")
"""A space, tab, newline or backslash in a name of the mount table."""

_REMOVALS = 3
"""Attempts to remove a tree: a program that is just ending may still write into it."""
_REAL = {*SHARED, "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "squashfs", "erofs"}
_FILES_SHARE = 0.75
_NEVER = ("/proc", "/sys", "/dev", "/run", "/tmp", "/boot", "/var/lib/docker", "/var/lib/containers")
MASKED_FILES = (
    *("/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats"),
)
MASKED_DIRECTORIES = ("/proc/acpi", "/proc/asound", "/proc/scsi", "/sys/firmware")
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
"""The paths that runc's and Docker's defaults mask and make read-only. Root of a node has no user namespace of its own,
so without these it could write the machine's sysctls and sysrq-trigger. The runtime skips paths that are missing."""
_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}


def mount(source: str, target: str | os.PathLike[str], kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Failed with the reason when the kernel refuses."""
    args = (source.encode(), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None)
    if _libc.mount(*args):
        number = ctypes.get_errno()
        raise Failed(Code.FAILED, f"cannot mount {source} on {os.fspath(target)}", os.strerror(number), "wherry doctor")


def mounted(table: bytes = b"") -> list[tuple[str, str, str]]:
    """(mount point, file system, options) of every mount of a mountinfo (proc(5)), in the order they were made. Without
    a table, of this process."""
    found = []
    for line in (table or Path("/proc/self/mountinfo").read_bytes()).rstrip(b"\n").split(b"\n"):
        left, _, right = line.partition(b" - ")
        fields = left.split(b" ")
        point = _ESCAPED.sub(lambda octal: bytes([int(octal[1], 8)]), fields[4])
        found.append((os.fsdecode(point), os.fsdecode(right.split(b" ")[0]), fields[5].decode()))
    return found


def unmount_below(directory: Path) -> None:
    """Unmounts everything at or below `directory`, the newest first. Ignores mounts that disappear meanwhile.

    No symbolic link in a path is followed: a user may have replaced a directory by one.
    """
    prefix = str(directory)
    for point, _, _ in reversed(mounted()):
        if point == prefix or point.startswith(prefix + "/"):
            above, _, name = point.rpartition("/")
            with suppress(OSError), opened(above) as fd:  # the parent: opening the mount may block on a dead server
                _libc.umount2(os.fsencode(f"/proc/self/fd/{fd}/{name}"), MNT_DETACH | UMOUNT_NOFOLLOW)


@contextmanager
def opened(path: str) -> Iterator[int]:
    """An O_PATH descriptor of an absolute path. OSError when a component is a symbolic link or does not exist."""
    fd = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        for name in filter(None, path.split("/")):
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def remove_tree(directory: Path) -> None:
    """Unmounts everything below a directory and removes it with its content.

    Failed when a mount remains: it may show a user's own files; or when anything else does, with its path and the
    reason. Safe for content that a user made: the depth does not matter, and links are not followed.
    """
    unmount_below(directory)
    left = [point for point, _, _ in mounted() if Path(point).is_relative_to(directory)]
    if left:
        raise Failed(Code.FAILED, f"{directory} was not removed", f"{left[0]} is still mounted", f"umount {left[0]}")
    for _ in range(_REMOVALS):
        done = subprocess.run(
            ["rm", "-rf", "--one-file-system", "--", str(directory)], capture_output=True, check=False
        )
        if not done.returncode:
            return
    said = done.stderr.decode(errors="replace").strip().splitlines()
    why = said[-1].removeprefix("rm: ") if said else f"rm ended with {done.returncode}"
    raise Failed(Code.FAILED, f"{directory} was not removed", why, f"rm -rf {directory}")


@dataclass(frozen=True)
class Bind:
    """A directory or file of the host shown inside the node at `inside`."""

    outside: str
    inside: str
    writable: bool = False

    @property
    def name(self) -> str:
        """Its name in CRIU's images, which no other one has."""
        return quote(self.inside, safe="")

    def options(self) -> list[str]:
        """Mount options: those of the host's mount, and always nodev (but for /dev) and nosuid (see mount(8))."""
        flags = os.statvfs(self.outside).f_flag
        options = ["nosuid"]
        if self.inside != "/dev":
            options.append("nodev")
        if flags & os.ST_NOEXEC:
            options.append("noexec")
        return [*options, "ro" if flags & os.ST_RDONLY or not self.writable else "rw"]


@dataclass(frozen=True)
class Layout:
    """The directories of one placement. `user` are the owner's directories that are bound writable; `memory` is the
    memory that the host shares between its nodes (`host_memory`), if any; `cgroup` is the cgroup of its programs' view,
    and `proc` has their view of some files of /proc; `disk` is the node's, at `directory`/disk, if it has one. `shown`
    are directories of root's that are bound read-only."""

    directory: Path
    owner: Owner
    user: tuple[str, ...] = ()
    memory: Path | None = None
    cgroup: str = ""
    proc: Callable[[], Mapping[str, str]] = dict
    disk: Disk | None = None
    shown: tuple[str, ...] = ()

    @property
    def private(self) -> Path:
        """The files that are moved with the node, but for those on its disk."""
        return self.directory / "private"

    @property
    def arriving(self) -> Path:
        """Where these files are besides, while they arrive."""
        return self.directory / "arriving"

    @property
    def tmp(self) -> Path:
        """The node's /tmp."""
        return self.disk.files if self.disk else self.private / "tmp"

    @property
    def own(self) -> tuple[Path, ...]:
        """A directory on each file system of the node's own."""
        return (self.private, self.tmp)

    @property
    def root(self) -> Path:
        """The node's root."""
        return self.directory / "root"

    @property
    def images(self) -> Path:
        """CRIU's images, during a move."""
        return self.directory / "images"

    @property
    def hidden(self) -> list[str]:
        """Directories of the machine that this node shows empty."""
        found = HIDDEN if is_account(self.owner.uid) else ()
        return [path for path in found if os.path.isdir(path) and os.path.realpath(path) == path]

    @property
    def binds(self) -> list[Bind]:
        """Every mount of the node except its root and /proc, parents before children."""
        own = [Bind(str(self.private / inside), f"/{inside}", True) for inside in ("run", "dev")]
        own.append(Bind(str(self.tmp), "/tmp", True))  # noqa: S108 - a mount point
        own.append(Bind(str(self.private / "shm"), "/dev/shm", True))  # noqa: S108 - a mount point
        own += [Bind(str(self.private / "etc" / name), f"/etc/{name}") for name in ("hosts", *self._names())]
        own.append(Bind(str(self.directory / "sys"), "/sys"))
        own += [Bind(str(self.memory), host_memory.INSIDE, True)] if self.memory else []
        groups = shown_cgroups.mounts(self.cgroup, self.directory / "cgroup") if self.cgroup else {}
        own += [Bind(outside, inside) for inside, outside in (*groups.items(), *self.proc().items())]
        hidden = self.hidden
        seen = [p for p in submounts() if not any(p == path or p.startswith(f"{path}/") for path in hidden)]
        shown = [Bind(p, p, any(p.startswith(f"{mine}/") for mine in self.user)) for p in seen if p not in self.user]
        theirs = [Bind(str(self._pin(index)), path, True) for index, path in enumerate(self.user)]
        theirs += [Bind(path, path) for path in self.shown]
        return sorted([*shown, *own, *theirs], key=lambda bind: bind.inside.count("/"))

    @property
    def masks(self) -> list[Bind]:
        """The mounts by which the runtime masks paths, and the mounts by CRIU in their place at a destination.

        The sources are the host's: root of the node can replace the files of its own /dev. The read-only paths are not
        among them, as CRIU itself binds parts of the node's own /proc.
        """
        files = [Bind("/dev/null", path) for path in MASKED_FILES]
        return [*files, *(Bind(str(self.directory / "empty"), path) for path in (*MASKED_DIRECTORIES, *self.hidden))]

    def make(self, memory: int, netns: str) -> None:
        """Mounts the placement's tmpfs with a read-only bind of / and the user's directories. Files have at most
        _FILES_SHARE of the node's memory, so that full files are an error of who writes, and not the end of processes.

        /sys belongs to the network namespace at `netns`: MPI libraries look there for the node's interfaces.
        """
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        mount("wherry", self.directory, "tmpfs", MS_NOSUID, f"mode=0700,size={int(memory * _FILES_SHARE)}")
        mount("", self.directory, flags=MS_PRIVATE)
        for name in ("private", "root", "images", "binds", "sys", "empty", "disk"):
            (self.directory / name).mkdir()
        if self.disk:
            self.disk.make()
        shown_cgroups.fill(self.directory / "cgroup")
        mount("/", self.root, flags=MS_BIND)
        mount("", self.root, flags=MS_PRIVATE)
        mount("", self.root, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
        in_netns(netns, lambda: mount("sysfs", self.directory / "sys", "sysfs", flags))
        for index, path in enumerate(self.user):
            self._pin(index).mkdir()
            descriptor = self.open_directory(path)
            try:
                mount(f"/proc/self/fd/{descriptor}", self._pin(index), flags=MS_BIND)
            finally:
                os.close(descriptor)
            mount("", self._pin(index), flags=MS_PRIVATE)

    def multiply_room(self, factor: float) -> None:
        """Changes how many bytes and files there may be, those there are included. Failed when there are more."""
        now = os.statvfs(self.directory)
        size, inodes = int(now.f_blocks * now.f_frsize * factor), int(now.f_files * factor)
        mount("wherry", self.directory, "", MS_REMOUNT | MS_NOSUID, f"size={size},nr_inodes={inodes}")

    def space(self) -> tuple[int | None, int | None]:
        """Bytes of files in the placement's tmpfs, and how many there may be; None when it is not mounted."""
        try:
            found = os.statvfs(self.private)
        except OSError:
            return None, None
        return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize

    def _pin(self, index: int) -> Path:
        """Where the user's directory is bound first: the node gets this mount even if the path changes meanwhile."""
        return self.directory / "binds" / str(index)

    def open_directory(self, path: str) -> int:
        """Opens the directory with its user's rights. Failed when the user may not, when the path has become a link, or
        when the user could replace it later: the runtime mounts by path, as root."""

        def enter() -> int:
            return os.open(os.path.join(path, "."), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

        what = f"{path} cannot be bound into the node"
        try:
            kept = trusted_path(path, self.owner)
            descriptor = as_user(self.owner, enter)
        except OSError as error:
            why = f"uid {self.owner.uid}: {error.strerror or error}"
            raise Failed(Code.FAILED, what, why, f"ls -ld {path}") from None
        found = os.readlink(f"/proc/self/fd/{descriptor}")
        if found != path or kept != path:
            os.close(descriptor)
            link = f"it has become a link to {found}"
            why = link if found != path else f"others than root can rename files in {kept}"
            raise Failed(Code.FAILED, what, why, "wherry down NAME, then wherry up FILE")
        return descriptor

    def fill(self, hosts: str) -> None:
        """Creates the initial private tree of a new node, with mount points for the user's directories."""
        for name, mode in (
            ("tmp", 0o1777),
            ("run", 0o755),
            ("dev", 0o755),
            ("shm", 0o1777),
            ("etc", 0o755),
            ("dev/shm", 0o755),
            ("dev/pts", 0o755),
        ):
            path = self.private / name
            path.mkdir()
            path.chmod(mode)
        for name, text in {"hosts": hosts, **self._names()}.items():
            file = self.private / "etc" / name
            file.write_text(text)
            file.chmod(0o644)  # whatever the daemon's umask: a rank may become another user
        (self.private / "run" / "lock").mkdir()
        (self.private / "run" / "lock").chmod(0o1777)
        for name, (major, minor) in _DEVICES.items():
            path = self.private / "dev" / name
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
            path.chmod(0o666)
        (self.private / "dev" / "ptmx").symlink_to("pts/ptmx")
        for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
            (self.private / "dev" / name).symlink_to(f"/proc/self/fd{target}")
        for bind in (*self.user, *self.shown):
            top, _, rest = bind.strip("/").partition("/")
            if top in ("tmp", "run") and rest:
                (self.tmp if top == "tmp" else self.private / top).joinpath(rest).mkdir(parents=True, exist_ok=True)

    def _names(self) -> dict[str, str]:
        """Files of /etc with names of users, for a node of an account: it has a user of its own there, and the users of
        the machine are none of its business."""
        uid = self.owner.uid
        if not is_account(uid):
            return {}
        users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        return {
            "passwd": f"{users}{NODE_USER}:x:{uid}:{uid}::{NODE_HOME}:/bin/bash\n",
            "group": f"root:x:0:\nnogroup:x:65534:\n{NODE_USER}:x:{uid}:\n",
        }

    def remove(self) -> None:
        """Removes the placement's mounts, directory and disk. Idempotent."""
        unmount_below(self.directory)
        if self.disk:
            self.disk.remove()
        try:
            self.directory.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Failed(Code.FAILED, f"cannot remove {self.directory}", str(error), "wherry down --all") from None


def submounts() -> list[str]:
    """Mount points of real file systems that a node needs to see (a separate /usr, /home, /opt …). Mounts with a path
    that a user could change are omitted: the runtime mounts by path, as root."""
    found = []
    for point, kind, _ in mounted():
        if point == "/" or kind not in _REAL or any(point == p or point.startswith(p + "/") for p in _NEVER):
            continue
        if point not in found and is_trusted(point) and os.path.isdir(point):
            found.append(point)
    return found
