"""Probes whether virtual machines can run on this machine: QEMU's version, and whether KVM works.

Invariant: KVM is used only after a kernel booted under it: /dev/kvm may exist and not work (nested, for instance).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from wherry.base.atomic_write import write_atomically
from wherry.base.remembered import Undecided, remembered
from wherry.node.vm.image.catalog import VmImage

EMULATOR = "qemu-system-x86_64"
CACHE = Path("/var/lib/wherry/libvirt-cache")
"""Results of probes of QEMU, of ours and of the libvirtds of emulated hosts; valid for one QEMU and one boot."""
_SILENT, _PROBE, _AGAIN = 10, 60.0, 600.0
"""A kernel under KVM needs less than a second to its first output. Seconds of processor time after which a silent one
does not boot; seconds that it may take on a busy machine; and until a kernel that took longer is tried again."""
_NO_BOOT = "a kernel does not boot under /dev/kvm"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SAFE = (9, 0)
"""QEMU before this can lose a guest's writes in a move under emulation: 03bfc2188f06, "physmem: Fix migration dirty
bitmap coherency with TCG memory access", is in 9.0."""


def emulator() -> str:
    """Path of QEMU; empty when it is not installed."""
    return shutil.which(EMULATOR) or ""


def libvirtd() -> str:
    """Path of libvirt's daemon; empty when it is not installed."""
    return shutil.which("libvirtd") or ""


@functools.cache
def version() -> tuple[int, int]:
    """QEMU's version, for instance (10, 0); (0, 0) when it is unknown."""
    if not emulator():
        return 0, 0
    done = subprocess.run([emulator(), "--version"], capture_output=True, text=True, timeout=30, check=False)
    found = re.search(r"version (\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@remembered(_AGAIN)
def kvm(image: VmImage) -> str:
    """Why KVM cannot run a guest; empty when the image's kernel boots under it. Tested once per boot of the machine."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "there is no /dev/kvm"
    boot, answers = _BOOT_ID.read_text().strip(), CACHE / "kvm.json"
    with image.kernel.open("rb") as file:  # many images have one kernel
        asked = " ".join([boot, *map(str, version()), hashlib.file_digest(file, "sha256").hexdigest()])
    try:
        known = {key: reason for key, reason in json.loads(answers.read_text()).items() if key.startswith(boot)}
    except (OSError, ValueError, AttributeError):
        known = {}  # not tested yet
    if asked not in known:
        known[asked] = "" if _boots(image) else _NO_BOOT
        with contextlib.suppress(OSError):  # the disk is full, perhaps: the next process tries it again
            CACHE.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(answers, json.dumps(known).encode())
    return str(known[asked])


def _boots(image: VmImage) -> bool:
    """Whether the image's kernel prints anything under KVM. Undecided when it got too little processor time for
    that."""
    words = ["prlimit", f"--cpu={_SILENT}", "--", emulator(), "-accel", "kvm", "-m", "256", "-nographic", "-no-reboot"]
    words += ["-nic", "none", "-kernel", str(image.kernel), "-append", "console=ttyS0 panic=-1"]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    ended = True
    try:
        said, _ = process.communicate(timeout=_PROBE)
    except subprocess.TimeoutExpired:
        ended = False
        process.kill()
        said, _ = process.communicate()
    if b"Linux version" in said or ended:
        return b"Linux version" in said
    raise Undecided(f"{_NO_BOOT} within {_PROBE:g} s", f"a kernel under /dev/kvm printed nothing for {_PROBE:g} s")


def no_vhost(emulated: bool) -> str:
    """Why vhost-net cannot be used for a guest; empty when it can."""
    if emulated:
        return "vhost-net needs KVM: the kernel cannot access the memory of an emulated guest"
    return "" if os.access("/dev/vhost-net", os.R_OK | os.W_OK) else "there is no /dev/vhost-net (modprobe vhost_net)"


@functools.cache
def devices() -> frozenset[str]:
    """Names of the devices that QEMU has."""
    done = subprocess.run([emulator(), "-device", "help"], capture_output=True, text=True, timeout=30, check=False)
    return frozenset(re.findall(r'^name "([^"]+)"', done.stdout, re.M))


def unsafe_moves(emulated: bool) -> str:
    """Why virtual machines should not be moved with this QEMU; empty when they can be."""
    return unsafe(version()) if emulated else ""


def unsafe(number: tuple[int, int]) -> str:
    """Why machines that QEMU of this version emulates should not be moved; empty when they can be."""
    if number >= _SAFE:
        return ""
    text = ".".join(map(str, number))
    return f"QEMU {text} can lose a guest's writes in a move without KVM; {_SAFE[0]}.{_SAFE[1]} and later do not"
