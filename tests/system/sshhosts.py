"""Three bare hosts that SSH reaches, on one machine: they share its kernel and its files that they mount. They have
neither Python nor this checkout. The daemon's machine sees no cgroups of theirs, a blind one no processes either.

    namespaces of `lab`                          namespaces of `h1`, and so of `h2` and `h3`
    wherryd ── lan0 (bridge) ─────── veth ────── eth0: 10.80.0.11
    own cgroups (`blind`: and processes)         sshd; own network, processes, mounts, name, /run, /tmp, /var/lib/wherry

The user's files are on `shared`, which all of them see, as on a cluster with shared storage.
Invariant: a host is a PID namespace that ends with this process, and with it its sshd and nodes.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from qemuhosts import LAB_SCRIPT, NamespaceSet, copy_etc, exchange_keys, namespace_set, script, sshd

from wherry.fabric.cgroup import Cgroup, machine_layout
from wherry.node.netns_socket import in_netns

ADDRESSES = {"h1": "10.80.0.11", "h2": "10.80.0.12", "h3": "10.80.0.13"}
LAB = "10.80.0.1"
FABRIC = """\
kind: fabric
version: 1
name: machines
driver: ssh
sites: [{name: lab}]
hosts:
"""
"""Without its hosts: see `rows`."""
_ETH_P_ALL, _SO_RCVBUFFORCE = 3, 33
"""linux/if_ether.h, asm-generic/socket.h."""
PROGRAMS = ("ssh", "ssh-keygen", "unshare", "setpriv", "nsenter", "ip")
_CHECKOUT = Path(__file__).resolve().parents[2]
_HOST = """
hostname {name}
mount --bind {etc} /etc
mount -t tmpfs tmpfs /run
mkdir /run/lock /run/sshd
mount -t tmpfs tmpfs /tmp
mkdir -p /var/lib/wherry
mount -t tmpfs tmpfs /var/lib/wherry
mount -t tmpfs tmpfs {checkout}
for each in /usr/lib/python3*; do mount -t tmpfs tmpfs "$each"; done
for each in /usr/bin/python3*; do [ -L "$each" ] || mount --bind /dev/null "$each"; done
ip link set lo up
ip address add {address}/24 dev eth0
ip link set eth0 up
"""


class SshLab:
    """The namespaces of the daemon and of the hosts; `shared` is seen by all."""

    def __init__(self, directory: Path, lab: NamespaceSet, hosts: dict[str, NamespaceSet]) -> None:
        self.shared = directory / "shared"
        self.namespaces = lab
        self.hosts = hosts

    def left(self, host: str, word: str) -> list[str]:
        """Things on a host with this word in their name: namespaces of networks, and all in /run/wherry."""
        found = "find /run/netns /run/wherry -mindepth 1 -maxdepth 3 2>/dev/null; true"
        return sorted(line for line in self.hosts[host].run("sh", "-c", found).splitlines() if word in line)

    def bundles(self, host: str) -> list[str]:
        """The bundles that are whole there, by their names, and all else in their directory."""
        return self.hosts[host].run("sh", "-c", "ls -A /var/lib/wherry/agent-bundles 2>/dev/null || true").split()

    def agents(self, host: str) -> list[int]:
        """PIDs, at the host, of the agents that run there."""
        text = self.hosts[host].run("sh", "-c", "pgrep -f '[-]m wherry.agent' || true")
        return [int(word) for word in text.split()]


class Tap:
    """Captures every packet between the hosts, and to the daemon, while it is open."""

    def __init__(self, network: NamespaceSet, words: Iterable[bytes]) -> None:
        """Of the packets it keeps how many bytes they were, and which of `words` were in one."""
        self.heard, self.count, self._words = set[bytes](), 0, tuple(words)
        every = socket.htons(_ETH_P_ALL)  # packets of each interface
        self._socket = in_netns(
            f"/proc/{network.pid}/ns/net", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, every)
        )
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 256 << 20)
        self._socket.settimeout(0.2)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Captures the packets under way, and ends."""
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _hear(self) -> None:
        while True:
            try:
                packet = self._socket.recv(1 << 16)
            except TimeoutError:
                if self._ended.is_set():
                    return
                continue
            self.count += len(packet)
            self.heard.update(word for word in self._words if word in packet)


@contextmanager
def ssh_lab(directory: Path, blind: bool = False) -> Iterator[SshLab]:
    """The hosts, whose sshds accept root of the lab. Signals do not reach commands that enter a blind lab."""
    etc = copy_etc(directory)
    exchange_keys(etc / "ssh", ADDRESSES.values())
    (directory / "shared").mkdir()
    with ExitStack() as stack:
        kinds = ("--mount", "--net", "--uts", "--pid", "--kill-child", "--mount-proc")
        lab = namespace_set(stack, *(kinds if blind else ("--mount", "--net")))
        script(lab, LAB_SCRIPT, etc=etc, address=LAB)
        hide_cgroups(lab, stack)
        hosts = {name: namespace_set(stack, *kinds) for name in ADDRESSES}
        for name, host in hosts.items():
            wire = f"link add {name} master lan0 type veth peer name eth0 netns {host.pid}"
            wired = ["nsenter", f"--target={lab.pid}", "--net", "--", "ip", *wire.split()]
            subprocess.run(wired, check=True, timeout=60)  # from here: the lab sees no process of the host
            lab.run("ip", "link", "set", name, "up")
            own = directory / name
            own.mkdir()
            daemon = shutil.copy(str(sshd()), own / "sshd")
            script(host, _HOST, name=name, etc=etc, checkout=_CHECKOUT, address=ADDRESSES[name])
            host.run(str(daemon), "-f", "/etc/ssh/sshd_config")
        yield SshLab(directory, lab, hosts)


def hide_cgroups(lab: NamespaceSet, stack: ExitStack) -> None:
    """Leaves the namespaces one cgroup of each hierarchy, so that those of hosts are not in their tree."""
    own = Cgroup(f"ssh-lab-{lab.pid}")
    stack.callback(own.remove)
    own.create()
    for root in machine_layout().roots():
        lab.run("mount", "--bind", str(root / own.name), str(root))
    for root in machine_layout().others:
        lab.run("mount", "-t", "tmpfs", "tmpfs", str(root))


def rows(*hosts: str, site: str = "lab", cores: int = 2, memory: str = "1GiB") -> str:
    """The hosts' lines in the file of a fabric."""
    size = f"cores: {cores}, memory: {memory}"
    return "".join(
        f"  - {{name: {host}, site: {site}, {size}, uri: 'ssh://root@{ADDRESSES[host]}'}}\n" for host in hosts
    )


@contextmanager
def temporary_lab(blind: bool = False) -> Iterator[SshLab]:
    """The hosts below a directory of their own, which is removed with all their files; skips where they cannot be."""
    if missing := [name for name in PROGRAMS if not shutil.which(name)]:
        pytest.skip(f"there is no {', no '.join(missing)}")
    if not sshd():
        pytest.skip("there is no sshd (make setup)")
    with tempfile.TemporaryDirectory(prefix="wherry-ssh-", dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        with ssh_lab(Path(directory), blind) as created:
            yield created
