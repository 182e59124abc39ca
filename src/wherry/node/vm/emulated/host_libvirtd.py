"""One libvirtd per emulated host, alone with that host's network, name and directories.

    /run/wherry/INSTANCE/vm/HOST/     as the libvirtd and its QEMUs see it
        etc/                          /etc/libvirt
        lib/                          /var/lib/libvirt      monitors of the QEMUs
        log/                          /var/log/libvirt
        run/                          /run                  sockets, process ids, what nodes are given
    /var/lib/wherry/libvirt-cache/    /var/cache/libvirt    features of this machine's QEMU; of all instances

It listens on its own socket for us, and for the libvirtds of other hosts at the host's address, which neither a node
reaches nor a QEMU (qemu_guard.py).
Invariant: everything follows from instance and host, so a daemon that was killed finds it again; a libvirtd that was
killed is restarted and finds its QEMUs again; all of them live in the host's cgroup and network namespace, and so end
with the host.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import Instance, native_program
from wherry.base.remedies import setup
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.protocol import Fabric
from wherry.node.vm import libvirt_client
from wherry.node.vm.domain_names import id_of
from wherry.node.vm.emulated.qemu_guard import guard, open_destination
from wherry.node.vm.qemu_probe import CACHE
from wherry.node.vm.qemu_user import QEMU_UID, grant_read

_START_TIMEOUT = 90.0
"""Seconds until a libvirtd answers; the first one of a machine asks QEMU for its features, which takes ten idle
seconds."""
_MOUNTS = (("etc", "/etc/libvirt"), ("lib", "/var/lib/libvirt"), ("log", "/var/log/libvirt"), ("run", "/run"))
_ENTRIES = {
    "passwd": f"libvirt-qemu:x:{QEMU_UID}:{QEMU_UID}::/:/usr/sbin/nologin",
    "group": f"libvirt-qemu:x:{QEMU_UID}:",
}
"""Whom Debian's libvirtd looks up before it reads who QEMU runs as; a package that we do not need adds them."""
_DEVICES = ("kvm", "userfaultfd")
"""Devices that QEMU opens: the libvirtd's mount namespace has nodes of its user's, as the machine's are root's."""
_SCRIPT = """
directory=$1 name=$2 cache=$3 reap=$4 user=$5 devices=$6; shift 6
hostname "$name"
mount -t sysfs sysfs /sys
mount --bind "$directory/passwd" /etc/passwd
mount --bind "$directory/group" /etc/group
mount --bind "$cache" /var/cache/libvirt
mount -t tmpfs -o mode=0700,size=64k devices "$directory/dev"
for device in $devices; do
    [ -c "/dev/$device" ] || continue
    cp -a "/dev/$device" "$directory/dev/"
    chown "$user:$user" "$directory/dev/$device"
    chmod 0600 "$directory/dev/$device"
    mount --bind "$directory/dev/$device" "/dev/$device"
done
for pair in "$@"; do mount --bind "$directory/${pair%%:*}" "${pair#*:}"; done
exec "$reap" libvirtd --daemon --listen --config /etc/libvirt/libvirtd.conf --pid-file /run/libvirtd.pid
"""
"""/run comes last, as the others' sources lie below it. The new /sys shows the links of the host's network. QEMUs that
end are reaped at once, whatever process 1 does: libvirt waits for that when it ends one, also at the end of a move."""


class HostDaemon:
    """The libvirtd of one host."""

    def __init__(self, instance: Instance, fabric: Fabric, host: str) -> None:
        self._instance = instance
        self._fabric = fabric
        self.host = host
        self.directory = instance.run / "vm" / host

    @property
    def peer_uri(self) -> str:
        """Where the libvirtds of other hosts reach it."""
        return f"qemu+tcp://{self._fabric.host_address(self.host)}/system"

    def running(self) -> bool:
        """True when its process is there."""
        return self._pid() is not None

    def connect(self, seconds: float = libvirt_client.OPEN) -> Any:
        """A connection to it; it is started when it does not run. LostContact when it does not answer within
        `seconds`."""
        with self._alone():
            if not self.running():
                self._start()
        return libvirt_client.connect(self._uri(), seconds)

    def stop(self) -> None:
        """Ends it. Its QEMUs run on."""
        with self._alone():
            pid = self._pid()
            if pid is not None:
                with suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(pid, signal.SIGKILL)  # it takes its time when it is asked; its state is in its files

    def qemu(self, name: str) -> int | None:
        """Process id of the QEMU of a domain; None when it is gone."""
        pid = _number(self.directory / "run" / "libvirt" / "qemu" / f"{name}.pid")
        return pid if pid is not None and f"guest={name},".encode() in _command(pid) else None

    def open_destination(self, address: str) -> None:
        """Lets its QEMUs connect to receiving ones at another host's address, for as long as a move's begin."""
        open_destination(self._fabric.host_netns(self.host), address)

    def _uri(self) -> str:
        return f"qemu+unix:///system?socket={self.directory}/run/libvirt/libvirt-sock"

    def _pid(self) -> int | None:
        pid = _number(self.directory / "run" / "libvirtd.pid")
        if pid is None or b"libvirtd" not in _command(pid):
            return None
        try:
            here = os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat(self._fabric.host_netns(self.host)).st_ino
        except OSError:
            return None
        return pid if here else None

    def _start(self) -> None:
        self._configure()
        guard(self._fabric.host_netns(self.host))
        group = Cgroup(f"{self._fabric.cgroup(self.host)}/libvirtd")
        group.create()
        enter = [str(native_program("wherry-ns")), "--net", self._fabric.host_netns(self.host)]
        for file in group.procs_files():
            enter += ["--cgroup", file]
        unshare = ["unshare", "--mount", "--uts", "--propagation", "private", "/bin/sh", "-ec", _SCRIPT, "libvirtd"]
        reap = str(native_program("wherry-reap"))
        words = [str(self.directory), self.host, str(CACHE), reap, str(QEMU_UID), " ".join(_DEVICES)]
        words += [*(f"{name}:{path}" for name, path in _MOUNTS)]
        environment = {"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), "HOME": "/root"}
        what = f"libvirtd did not start on host {self.host}"
        try:
            done = subprocess.run(
                [*enter, "--", *unshare, *words],
                env={**environment, "LANG": "C.UTF-8", "WHERRY_INSTANCE": self._instance.name},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_START_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:  # its text has the whole script
            raise Failed(Code.TIMED_OUT, what, f"waited {_START_TIMEOUT:.0f} s", "wherry doctor") from None
        if done.returncode:
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise Failed(Code.FAILED, what, why, "wherry doctor")
        self._await_answer()

    def _await_answer(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                libvirt_client.connect(self._uri()).close()
                return
            except WherryError as error:
                if time.monotonic() > deadline or not self.running():
                    what = f"libvirtd on host {self.host} does not answer"
                    raise Failed(Code.FAILED, what, error.why, "wherry doctor") from None
            time.sleep(0.05)

    def _configure(self) -> None:
        if not shutil.which("libvirtd"):
            raise Refused(Code.UNSUPPORTED, "libvirtd is not installed", "", setup("setup-vm"))
        CACHE.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, path in (*_MOUNTS, ("", "/var/cache/libvirt")):
            Path(path).mkdir(parents=True, exist_ok=True)
            (self.directory / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.directory / "dev").mkdir(exist_ok=True, mode=0o700)
        for name in ("lib", "run"):
            grant_read(self.directory / name)
        address = self._fabric.host_address(self.host)
        daemon: dict[str, str | int] = {
            "listen_tls": 0, "listen_tcp": 1, "listen_addr": address, "auth_tcp": "none", "auth_unix_rw": "none",
            "unix_sock_group": "root", "unix_sock_rw_perms": "0700", "unix_sock_ro_perms": "0700",
            "host_uuid": id_of(self._instance.name, self.host),
            "log_outputs": "3:file:/var/log/libvirt/libvirtd.log",
            # Of us: half a minute without an answer, libvirt's default, is no sign that this daemon has died.
            "keepalive_interval": libvirt_client.KEEPALIVE_SECONDS, "keepalive_count": libvirt_client.KEEPALIVES,
        }  # fmt: skip
        # What QEMU may open is lent to its user by us, and libvirt changes no owners: an image is shared by nodes.
        qemu: dict[str, str | int | list[str]] = {
            "user": f"+{QEMU_UID}", "group": f"+{QEMU_UID}", "dynamic_ownership": 0, "remember_owner": 0,
            "security_driver": "none", "seccomp_sandbox": 1, "clear_emulator_capabilities": 1,
            "cgroup_controllers": [], "namespaces": [], "stdio_handler": "file", "migration_address": address,
            # Of the connection by which one libvirtd moves a machine to another. Among many emulated processors an
            # answer took more than 12 s, which lost the move; one without progress is ended by us.
            "keepalive_interval": libvirt_client.KEEPALIVE_SECONDS, "keepalive_count": libvirt_client.KEEPALIVES,
            "max_core": 0,  # QEMU has the node's key in its memory
        }  # fmt: skip
        for file, entry in _ENTRIES.items():
            known = Path("/etc", file).read_text()
            more = "" if f"\n{entry.split(':')[0]}:" in known else f"{entry}\n"
            (self.directory / file).write_text(known + more)
        (self.directory / "etc" / "libvirtd.conf").write_text(_settings(daemon))
        (self.directory / "etc" / "qemu.conf").write_text(_settings(qemu))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One caller at a time, of this process or another, starts or ends it."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.directory / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _settings(values: dict[str, Any]) -> str:
    """The format of libvirt's own files: JSON's strings, numbers and lists are right in it."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
