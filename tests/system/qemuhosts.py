"""Two hosts that run QEMU, on one machine: each has a network, processes and mounts of its own, and its own libvirtd.

    namespaces of `lab`                          namespaces of `q1`, and so of `q2`
    wherryd ── lan0 (bridge) ─────── veth ────── eth0 ── br0 (bridge) ── tap ── a node
                                                 libvirtd: 10.79.0.11, TLS (16514); sshd, where there is one

Nothing of Wherry is installed there: the hosts are configured as in libvirt's documentation
(https://libvirt.org/kbase/tlscerts.html), with QEMU as an unprivileged user, and without KVM, which some machines have
and cannot use. Invariant: a host is a PID namespace that ends with this process, and with it its libvirtd and QEMUs;
all its files are in one directory.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ADDRESSES = {"q1": "10.79.0.11", "q2": "10.79.0.12"}
LAB = "10.79.0.1"
PROGRAMS = (
    "qemu-system-x86_64",
    "libvirtd",
    "virsh",
    "busybox",
    "sqfstar",
    "openssl",
    "ssh-keygen",
    "unshare",
    "setpriv",
)
QEMUS_USER, _ID = "libvirt-qemu", 64055
_ENTRIES = {
    "passwd": [f"{QEMUS_USER}:x:{_ID}:{_ID}::/:/usr/sbin/nologin", "sshd:x:64056:65534::/run/sshd:/usr/sbin/nologin"],
    "group": [f"{QEMUS_USER}:x:{_ID}:"],
}
"""Users and groups that packages which are not needed otherwise would create."""
_TLS = """\
listen_tls = 1
listen_tcp = 0
auth_tls = "none"
auth_unix_rw = "none"
unix_sock_group = "root"
host_uuid = "{uuid}"
"""
_QEMU = """\
user = "libvirt-qemu"
group = "libvirt-qemu"
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
"""
"""Turns off things that a set of namespaces cannot provide: security modules, cgroups, virtlogd."""
_HOST = """
hostname {name}
[ ! -e /dev/kvm ] || mount --bind {etc}/nothing /dev/kvm
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir /run/lock /run/sshd
mount --bind {etc} /etc
mount --bind {cache} /var/cache/libvirt
for each in lib log; do mount --bind {directory}/$each /var/$each/libvirt; done
mount --bind {directory}/etc /etc/libvirt
ip link set lo up
ip link add br0 type bridge forward_delay 0
ip link set eth0 up master br0
ip address add {address}/24 dev br0
ip link set br0 up
"""
_SSHD = """\
StrictModes no
HostKey /etc/ssh/lab
AuthorizedKeysFile /etc/ssh/lab.pub
PermitRootLogin prohibit-password
UsePAM no
PidFile /run/sshd.pid
"""
_SSH = """\
Host *
    IdentityFile /etc/ssh/lab
    UserKnownHostsFile /etc/ssh/lab.known
    BatchMode yes
"""
"""One key pair is used by all users and hosts."""
_LIBVIRTD = ("libvirtd", "--daemon", "--listen", "--pid-file", "/run/libvirtd.pid")
LAB_SCRIPT = """
mount --bind {etc} /etc
ip link set lo up
ip link add lan0 type bridge forward_delay 0
ip address add {address}/24 dev lan0
ip link set lan0 up
"""


class NamespaceSet:
    """A set of namespaces that exists as long as this object's sleeping process. In a PID namespace of its own the
    process is also the reaper of orphans: it ignores SIGCHLD, so the kernel reaps them."""

    def __init__(self, *kinds: str) -> None:
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--propagation", "private", *kinds, "--", "sh", "-c"]
        wait = "echo $$; exec env --ignore-signal=CHLD sleep infinity"
        self._process = subprocess.Popen([*words, wait], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        first = self._process.stdout.readline().strip()
        own = "--pid" in kinds  # its PID in its own namespace is 1
        self.pid = _child(self._process.pid) if own else int(first)
        self.enter = ("nsenter", f"--target={self.pid}", "--net", "--mount", *(["--pid", "--uts"] if own else []), "--")

    def run(self, *words: str, seconds: float = 60) -> str:
        """Runs a command inside, which must succeed; returns its output."""
        done = subprocess.run(
            [*self.enter, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def close(self) -> None:
        """Ends the namespaces and all processes in them."""
        self._process.kill()
        self._process.wait()


class QemuLab:
    """The namespaces of the daemon and of the hosts."""

    def __init__(self, directory: Path, qemu_lab: NamespaceSet, hosts: dict[str, NamespaceSet]) -> None:
        self.directory = directory
        self.namespaces = qemu_lab
        self.hosts = hosts

    def virsh(self, host: str, *words: str) -> str:
        """Runs virsh on a host; returns its output."""
        return self.hosts[host].run("virsh", "-q", *words)

    def domains(self) -> dict[str, str]:
        """Name of each running domain -> its host."""
        return {name: host for host in self.hosts for name in self.virsh(host, "list", "--name").split()}

    def receives(self, host: str) -> bool:
        """True while a node's memory is received there."""
        return "paused" in self.virsh(host, "list", "--state-paused")

    def start_libvirtd(self, host: str) -> None:
        """Starts libvirtd and returns when it answers."""
        self.hosts[host].run(*_LIBVIRTD)
        self.virsh(host, "version")

    def start_sshd(self) -> None:
        """Starts sshd on every host, until the host ends."""
        for host in self.hosts.values():
            host.run(str(sshd()), "-f", "/etc/ssh/sshd_config")

    @contextmanager
    def hidden_certificates(self) -> Iterator[None]:
        """Hides QEMU's certificates during the block."""
        directory = self.directory / "etc/pki/qemu"
        renamed = directory.rename(directory.with_name("away"))
        try:
            yield
        finally:
            renamed.rename(directory)

    def kill_libvirtd(self, host: str) -> None:
        """Kills libvirtd by SIGKILL. Its VMs keep running."""
        self.hosts[host].run("sh", "-c", "kill -9 $(cat /run/libvirtd.pid)")

    def restart_libvirtd(self, host: str) -> None:
        """Kills it, if it runs or is stopped, and starts it."""
        self.hosts[host].run("sh", "-c", "kill -9 $(cat /run/libvirtd.pid) 2>/dev/null; true")
        self.start_libvirtd(host)

    def wherry_files(self, host: str) -> list[str]:
        """Wherry's files on a host."""
        return sorted(path.name for path in (self.directory / host / "lib" / "wherry").glob("*"))


def sshd() -> str | None:
    """Path of the SSH daemon that is installed, or unpacked by scripts/setup-test."""
    unpacked = Path(__file__).resolve().parents[2] / "build/sshd/usr/sbin"
    return shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{unpacked}")


@contextmanager
def qemu_lab(directory: Path) -> Iterator[QemuLab]:
    """The hosts, whose libvirtds accept `qemu+tls://` and trust each other."""
    etc = copy_etc(directory)
    (etc / "nothing").touch(0)
    _make_certificates(etc / "pki")
    exchange_keys(etc / "ssh", ADDRESSES.values())
    for name in ("cache", "lib", "log"):
        Path("/var", name, "libvirt").mkdir(exist_ok=True)
    (directory / "cache").mkdir()
    (etc / "libvirt").mkdir(exist_ok=True)
    with ExitStack() as stack:
        qemu_lab = namespace_set(stack, "--mount", "--net")
        script(qemu_lab, LAB_SCRIPT, etc=etc, address=LAB)
        hosts = {
            name: namespace_set(stack, "--mount", "--net", "--uts", "--pid", "--kill-child", "--mount-proc")
            for name in ADDRESSES
        }
        for name, host in hosts.items():
            wire = f"link add {name} master lan0 type veth peer name eth0 netns {host.pid}"
            qemu_lab.run("ip", *wire.split())
            qemu_lab.run("ip", "link", "set", name, "up")
            own = directory / name
            for part in ("etc", "lib", "log"):
                (own / part).mkdir(parents=True)
            (own / "etc/libvirtd.conf").write_text(_TLS.format(uuid=uuid.uuid4()))
            (own / "etc/qemu.conf").write_text(_QEMU)
            script(host, _HOST, name=name, directory=own, etc=etc, cache=directory / "cache", address=ADDRESSES[name])
        created = QemuLab(directory, qemu_lab, hosts)
        for name in hosts:
            created.start_libvirtd(name)
        yield created


def copy_etc(directory: Path) -> Path:
    """The machine's /etc with the users that are needed, as a directory of the lab."""
    etc = directory / "etc"
    shutil.copytree("/etc", etc, symlinks=True)
    for file, entries in _ENTRIES.items():
        known = (etc / file).read_text()
        missing = [entry for entry in entries if f"{entry.split(':')[0]}:" not in known]
        (etc / file).write_text("\n".join([known.rstrip("\n"), *missing, ""]))
    return etc


def namespace_set(stack: ExitStack, *kinds: str) -> NamespaceSet:
    created = NamespaceSet(*kinds)
    stack.callback(created.close)
    return created


def script(namespaces: NamespaceSet, text: str, **words: Any) -> None:
    namespaces.run("sh", "-ec", text.format(**words), seconds=120)


def _make_certificates(pki: Path) -> None:
    """Makes a CA and one certificate for all hosts, with their addresses as alternative names."""
    private = pki / "libvirt/private"
    private.mkdir(parents=True)
    (pki / "CA").mkdir()
    authority, key = pki / "CA/cacert.pem", pki / "CA/cakey.pem"
    own, own_key = pki / "libvirt/servercert.pem", private / "serverkey.pem"
    new = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    names = ",".join(f"IP:{address}" for address in (LAB, *ADDRESSES.values()))
    for words in (
        (*new, "-subj", "/CN=lab", "-keyout", key, "-out", authority),
        (*new, "-CA", authority, "-CAkey", key, "-subj", "/CN=host", "-addext", f"subjectAltName={names}",
         "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", own_key, "-out", own),
    ):  # fmt: skip
        subprocess.run(words, check=True, capture_output=True, timeout=60)
    shutil.copy(own, pki / "libvirt/clientcert.pem")
    shutil.copy(own_key, private / "clientkey.pem")
    qemu = pki / "qemu"  # read by QEMU itself, as its user
    qemu.mkdir()
    for name, file in (("ca-cert", authority), ("server-cert", own), ("client-cert", own)):
        shutil.copy(file, qemu / f"{name}.pem")
    for name in ("server-key", "client-key"):
        os.chown(shutil.copy(own_key, qemu / f"{name}.pem"), _ID, -1)


def exchange_keys(directory: Path, addresses: Iterable[str]) -> None:
    """Every host accepts the key of every other."""
    directory.mkdir(exist_ok=True)
    key = directory / "lab"
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key), check=True, timeout=60)
    public = " ".join((directory / "lab.pub").read_text().split()[:2])
    (directory / "lab.known").write_text("".join(f"{address} {public}\n" for address in addresses))
    (directory / "ssh_config").write_text(_SSH)
    (directory / "sshd_config").write_text(_SSHD)
    shadow = directory.parent / "shadow"  # sshd refuses locked accounts
    shadow.write_text(re.sub("^root:[^:]*:", "root:*:", shadow.read_text(), flags=re.MULTILINE))


def _child(pid: int) -> int:
    """The only child of a process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
