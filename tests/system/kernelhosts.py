"""Three machines with two kernels, as QEMU VMs that SSH alone reaches; scripts/host-images makes them.

    namespaces of `lab`                       QEMU
    wherryd ── lan0 (bridge) ── tap h1 ────── h1: 10.82.0.11   Debian 12, its kernel
                     │          tap h2 ────── h2: 10.82.0.12   the same files, Debian 13's kernel
                     └───────── tap h3 ────── h3: 10.82.0.13   Debian 13
    `shared` of all: one directory of this machine, over 9p

The disks are copied at each write (snapshot=on), so a run leaves nothing. Invariant: a VM ends with this process.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from qemuhosts import LAB_SCRIPT, NamespaceSet, copy_etc, exchange_keys, namespace_set, script

ADDRESSES = {"h1": "10.82.0.11", "h2": "10.82.0.12", "h3": "10.82.0.13"}
LAB = "10.82.0.1"
PROGRAMS = ("qemu-system-x86_64", "ssh", "ssh-keygen", "unshare", "setpriv", "nsenter", "ip")
IMAGES = Path(os.environ.get("HOSTS_CACHE", "/var/tmp/wherry-hosts"))
MEMORY = 1536
"""MiB of a machine."""
_BOOT = 600
"""Seconds for a boot without KVM, of three at a time on two processors."""
_SPEAKS = 15
"""Seconds after which KVM that starts no kernel counts as broken."""


class KernelLab:
    """The network of the daemon and of the machines; `shared` is seen by all."""

    def __init__(self, directory: Path, lab: NamespaceSet) -> None:
        self.shared = directory / "shared"
        self.namespaces = lab

    def run(self, host: str, *words: str, seconds: float = 120) -> str:
        """Runs a command at a machine by SSH; its output."""
        return self.namespaces.run("ssh", f"root@{ADDRESSES[host]}", "--", *words, seconds=seconds)

    def left(self, host: str, word: str) -> list[str]:
        """Things at a machine with this word in their name: namespaces of networks, and all in /run/wherry."""
        found = self.run(host, "find /run/netns /run/wherry -mindepth 1 -maxdepth 3 2>/dev/null; true")
        return sorted(line for line in found.splitlines() if word in line)


def missing_images() -> list[str]:
    """The files of the machines that are not there."""
    return [
        name
        for host in ADDRESSES
        for kind in ("img", "kernel", "initrd")
        if not (IMAGES / (name := f"{host}.{kind}")).exists()
    ]


@contextmanager
def kernel_lab(directory: Path) -> Iterator[KernelLab]:
    """The machines, whose sshds accept root of the lab."""
    etc, shared = copy_etc(directory), directory / "shared"
    _share_home(etc / "passwd", shared / "home")
    exchange_keys(etc / "ssh", ADDRESSES.values())
    keys = shared / "keys"
    keys.mkdir(mode=0o700)
    for name in ("lab", "lab.pub"):
        (keys / name).write_bytes((etc / "ssh" / name).read_bytes())
    with ExitStack() as stack:
        lab = namespace_set(stack, "--mount", "--net")
        script(lab, LAB_SCRIPT, etc=etc, address=LAB)
        accel = "kvm" if _kvm_works() else "tcg,thread=multi"
        consoles = {name: directory / f"{name}.console" for name in ADDRESSES}
        for name, address in ADDRESSES.items():
            lab.run("ip", *f"tuntap add dev {name} mode tap".split())
            lab.run("ip", *f"link set {name} master lan0 up".split())
            stack.callback(_end, _boot(lab, name, address, shared, consoles[name], accel))
        deadline = time.monotonic() + _BOOT
        for name, console in consoles.items():
            while f"host-init: {name} is up" not in console.read_text(errors="replace"):
                assert time.monotonic() < deadline, (name, console.read_text(errors="replace")[-2000:])
                time.sleep(1)
        yield KernelLab(directory, lab)


def _share_home(passwd: Path, home: Path) -> None:
    """Nodes see the home of their owner, so root's home is a directory that all machines have."""
    home.mkdir(parents=True)
    passwd.write_text(re.sub(r"^(root:(?:[^:]*:){4})[^:]*", rf"\g<1>{home}", passwd.read_text(), flags=re.MULTILINE))


def _boot(
    lab: NamespaceSet, name: str, address: str, shared: Path, console: Path, accel: str
) -> subprocess.Popen[bytes]:
    number = address.rsplit(".", 1)[1]
    words = f"root=/dev/vda rw init=/host-init console=ttyS0 quiet panic=-1 net.ifnames=0 wherry.name={name}"
    argv = [
        *lab.enter, "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", accel, "-cpu", "max",
        "-m", str(MEMORY), "-smp", "2", "-nographic", "-no-reboot", "-monitor", "none",
        "-serial", f"file:{console}",
        "-drive", f"file={IMAGES / name}.img,if=virtio,format=raw,snapshot=on",
        "-device", "virtio-rng-pci",
        "-netdev", f"tap,id=wire,ifname={name},script=no,downscript=no",
        "-device", f"virtio-net-pci,netdev=wire,mac=02:82:00:00:00:{int(number):02x}",
        "-virtfs", f"local,path={shared},mount_tag=shared,security_model=passthrough",
        "-kernel", f"{IMAGES / name}.kernel", "-initrd", f"{IMAGES / name}.initrd",
        "-append", f"{words} wherry.address={address} wherry.shared={shared}",
    ]  # fmt: skip
    with console.open("ab") as errors:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)


def _end(machine: subprocess.Popen[bytes]) -> None:
    machine.kill()
    machine.wait()


def _kvm_works() -> bool:
    """KVM can be there and start nothing (nested, say): believe only a kernel that speaks."""
    if not os.access("/dev/kvm", os.W_OK):
        return False
    argv = ("qemu-system-x86_64", "-accel", "kvm", "-m", "512", "-nographic", "-no-reboot", "-nic", "none",
            "-kernel", str(IMAGES / "h1.kernel"), "-append", "console=ttyS0 panic=-1")  # fmt: skip
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as trial:
        try:
            said, _ = trial.communicate(timeout=_SPEAKS)
        except subprocess.TimeoutExpired:
            trial.kill()
            said, _ = trial.communicate()
    return b"Linux version" in said
