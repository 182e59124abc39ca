"""The NFS server of a cluster, by which its virtual machines see their user's directories: nfs-ganesha, in the head's
network namespace, which no move touches.

    RUN/files/CLUSTER/   configuration, process, log, and the server's notes of its clients

Invariants: whatever a machine asks for is done with the rights of the cluster's user (all are squashed to that), and
only for addresses of the cluster's network. Owner, group and mode of a file decide: the server does not honour POSIX
access control lists. Nor are file handles confined to the exported directories: a machine that forges one of another
file of the same file system gets the user's rights to that. A server outlives its daemon and is found again by name; it
is ended before the head's namespace goes, and has a cgroup of its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import Instance, native_program
from wherry.base.remedies import setup
from wherry.fabric.cgroup import Cgroup, machine_layout, only
from wherry.fabric.recorded_process import RecordedProcess

PROGRAM = "ganesha.nfsd"
PACKAGES = "nfs-ganesha and nfs-ganesha-vfs"
_PLUGIN = "ganesha/libfsalvfs.so"
_PORT = 2049
_START_SECONDS = 30.0
_LEASE = 120
"""Seconds for which a paused machine keeps its locks: the server's most."""
_GRACE = 30
"""Seconds for which a restarted server waits for machines to claim their open files; they wait, too."""
_CONTROLLERS = ("freezer", "memory", "pids")
_MEMORY = 512 << 20
_TASKS = 1024
"""Limits of a server: machines choose how much it remembers for them."""
_REMOTE = ("nfs", "autofs")
"""Beginnings of types of file systems that cannot be exported again, or whose mounts come and go."""
_AT_FDCWD = -100
_NOT_EXPORTED = "Errors processing block (EXPORT)"
"""The server's message about a directory that it cannot export; it continues without."""
_UNQUOTABLE = re.compile(r'["\\\n]')
_OF_A_SYSTEM = re.compile(r"/(?:(?:usr|bin|sbin|lib\d*|etc|dev|proc|sys|boot)(?:/|$)|(?:run|var|tmp|home)?$)")
_IDMAP = "[General]\nDomain = wherry\n[Translation]\nMethod = nsswitch\n"


def obstacle() -> str:
    """Why no server can be run on this machine; empty when one can."""
    if not shutil.which(PROGRAM) or not any(Path("/usr/lib").glob(f"*/{_PLUGIN}")):
        return f"{PACKAGES} are not installed ({setup('setup-vm')})"
    if not _has_handle("/"):  # the server finds all other file systems from there
        return "the root of this machine is on a file system without file handles, such as overlay"
    return ""


class FileServers:
    """The servers of an instance's clusters."""

    def __init__(self, instance: Instance) -> None:
        self._directory, self._cgroups = instance.run / "files", f"{instance.prefix}/.files"
        self._changing: dict[str, threading.Lock] = {}

    def obstacle(self) -> str:
        """As the function."""
        return obstacle()

    def can_export(self, path: str) -> bool:
        """False for a name that the server's configuration cannot have, for a directory that a machine has of its own
        (some system users' homes are such), and for one on a remote file system or on one without file handles."""
        if _UNQUOTABLE.search(path) or _OF_A_SYSTEM.match(path):
            return False
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        return not _type_of(path, mounts).startswith(_REMOTE) and _has_handle(path)

    def up(
        self,
        name: str,
        netns: str,
        address: str,
        subnet: str,
        paths: Sequence[str],
        user: tuple[int, int],
        still: Callable[[], bool],
    ) -> None:
        """Starts the server of a cluster in the namespace at path `netns`, unless it runs there, or is not wanted any
        more by `still`. Failed with its last words."""
        with self._lock(name):
            if still():
                self._up(name, netns, address, subnet, paths, user)

    def log(self, name: str) -> Path:
        """The output of the server of a cluster."""
        return self._directory / name / "log"

    def _up(
        self, name: str, netns: str, address: str, subnet: str, paths: Sequence[str], user: tuple[int, int]
    ) -> None:
        process = self._process(name)
        pid = process.pid()
        if pid is not None and os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat(netns).st_ino:
            return
        process.end()
        directory = self._directory / name
        (directory / "clients").mkdir(parents=True, exist_ok=True, mode=0o700)
        (directory / "pid").unlink(missing_ok=True)
        (directory / "idmapd.conf").write_text(_IDMAP)
        (directory / "ganesha.conf").write_text(_configuration(directory, address, subnet, paths, user))
        server = [PROGRAM, "-F", "-L", "STDERR", "-f", str(directory / "ganesha.conf"), "-p", str(directory / "lock")]
        ours = [str(native_program("wherry-ns")), "--net", netns, "--number", str(directory / "pid")]
        group = self._group(name)
        group.create()
        group.limit(1, _MEMORY, _TASKS)  # not in CPUs, for which its hierarchies have no controller
        for file in group.procs_files():
            ours += ["--cgroup", file]
        with open(self.log(name), "ab") as log:
            begun = log.tell()
            process.child = subprocess.Popen(
                [*ours, "--", *server],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(process.pid()):
            if process.child is None or process.child.poll() is not None or time.monotonic() > deadline:
                process.end()
                lines = self._said(name, begun)
                what = f"the NFS server of cluster {name} did not start"
                raise Failed(Code.FAILED, what, lines[-1] if lines else "it said nothing", "wherry doctor")
            time.sleep(0.02)
        if why := next((line for line in self._said(name, begun) if _NOT_EXPORTED in line), ""):
            process.end()
            what = f"the NFS server of cluster {name} cannot export a directory of {', '.join(paths)}"
            raise Failed(Code.FAILED, what, why, "wherry doctor")

    def _said(self, name: str, begun: int) -> list[str]:
        """The lines of the log from a place on."""
        return self.log(name).read_bytes()[begun:].decode(errors="replace").splitlines()

    def down(self, name: str) -> None:
        """Ends the server of a cluster, if there is one."""
        with self._lock(name):
            self._process(name).end()
            self._group(name).remove()
            shutil.rmtree(self._directory / name, ignore_errors=True)

    def _lock(self, name: str) -> threading.Lock:
        return self._changing.setdefault(name, threading.Lock())

    def _group(self, name: str) -> Cgroup:
        found = [controller for controller in _CONTROLLERS if machine_layout().root(controller)]
        return Cgroup(f"{self._cgroups}/{name}", only(*found))

    def _process(self, name: str) -> RecordedProcess:
        return RecordedProcess(self._directory / name / "pid")


def _type_of(path: str, mountinfo: str) -> str:
    """The type of the file system that a path is on, by the text of /proc/self/mountinfo."""
    where, found = "", ""
    for line in mountinfo.rstrip("\n").split("\n"):
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split(" ")[4])
        if len(point) >= len(where) and (path == point or path.startswith(f"{point.rstrip('/')}/")):
            where, found = point, after.split(" ")[0]  # a later mount hides an earlier one
    return found


def _has_handle(path: str) -> bool:
    """False on a file system without file handles, by which the server finds files (name_to_handle_at(2))."""
    handle, mount = (ctypes.c_uint * 2)(0, 0), ctypes.c_int()  # without room: EOVERFLOW where there are handles
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.name_to_handle_at(_AT_FDCWD, os.fsencode(path), handle, ctypes.byref(mount), 0)
    return done == 0 or ctypes.get_errno() != errno.EOPNOTSUPP


def _listens(pid: int | None) -> bool:
    try:
        lines = Path(f"/proc/{pid}/net/tcp6").read_text() + Path(f"/proc/{pid}/net/tcp").read_text()
    except OSError:  # it has not begun, or has ended
        return False
    return any(f":{_PORT:04X} " in line and line.split()[3] == "0A" for line in lines.splitlines())


def _configuration(directory: Path, address: str, subnet: str, paths: Sequence[str], user: tuple[int, int]) -> str:
    """The text of ganesha-config(8). NFS 4.1 needs one port and no other service."""
    text = f"""NFS_CORE_PARAM {{
    Protocols = 4; NFS_Port = {_PORT}; Bind_addr = {address}; Enable_NLM = false; Enable_RQUOTA = false;
}}
NFSv4 {{
    Minor_Versions = 1, 2; Only_Numeric_Owners = true; IdmapConf = "{directory}/idmapd.conf";
    RecoveryBackend = fs; RecoveryRoot = "{directory}/clients"; Lease_Lifetime = {_LEASE}; Grace_Period = {_GRACE};
}}
NFS_KRB5 {{ Active_krb5 = false; }}
MDCACHE {{ Use_Getattr_Directory_Invalidation = true; }}
EXPORT_DEFAULTS {{ Attr_Expiration_Time = 1; PrivilegedPort = true; }}
LOG {{ Default_Log_Level = WARN; }}
"""
    for number, path in enumerate(paths, 1):
        text += f"""EXPORT {{
    Export_Id = {number}; Path = "{path}"; Pseudo = "{path}"; Protocols = 4; Transports = TCP; SecType = sys;
    Access_Type = None; Squash = All_Squash; Anonymous_Uid = {user[0]}; Anonymous_Gid = {user[1]};
    CLIENT {{ Clients = {subnet}; Access_Type = RW; }}
    FSAL {{ Name = VFS; }}
}}
"""
    return text
