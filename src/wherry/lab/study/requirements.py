"""Features that levels of studies need and this machine lacks; determined when a study is created and stored with
it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from wherry.base.errors import Refused
from wherry.base.paths import images_directory, native_program
from wherry.base.remedies import packages
from wherry.lab.study import applications, sites
from wherry.lab.study.design import Design
from wherry.lab.study.levels import Combination
from wherry.model.adapters import ADAPTER_DRIVERS, qemu_device
from wherry.model.records import Image

VM = "vm"
"""Key: VM nodes are unavailable."""
VM_MOVES = "vm-moves"
"""Key: VM nodes cannot be moved."""
POST_COPY = "post-copy"
"""Key: VM nodes cannot be moved by post-copy."""
KVM = "kvm"
"""Key: VM nodes are emulated."""
KVM_COUNTS = "kvm-counts"
"""Key: KVM's exits cannot be counted."""
VHOST = "vhost"
"""Key: the kernel cannot handle the frames of VM nodes."""
NO_ADAPTER = "adapter "
"""Begin of keys: VM nodes cannot have the network adapter of this model."""
LEAST_VM_MEMORY = 192 << 20
"""Bytes of memory in which VM nodes run NPB's smallest classes by both MPIs; with less they boot, and Open MPI's are
refused."""
_VHOST_DEVICE = Path("/dev/vhost-net")
KVM_COUNTERS = Path("/sys/kernel/debug/kvm")
"""KVM's counters, a directory for each machine; debugfs must be mounted."""
_USERFAULTFD = Path("/proc/sys/vm/unprivileged_userfaultfd")
_USERFAULTFD_DEVICE = Path("/dev/userfaultfd")
"""QEMU of emulated hosts is unprivileged: it may use userfaultfd if the first is 1, or by the second, which its
libvirtd gives to it where the machine has one."""
_VM_NEEDS = ("libvirt", "image")
"""The doctor's findings that VM nodes require. KVM is not one of them: without it VMs are emulated, and slow."""


_OPTIONAL_PROGRAMS = ("npb-sp-openmpi", "wherry-linpack")
"""Native programs that are built only where MPI and LAPACK are installed."""
INSTALLED = {
    "hpcc": "hpcc",
    "NPopenmpi": "netpipe-openmpi",
    "NPmpich2": "netpipe-mpich2",
    "ping": "iputils-ping",
    "mpirun.openmpi": "openmpi-bin",
    "mpiexec.mpich": "mpich",
}
"""Programs of the distribution that studies run -> their packages."""
_VERSIONS = ("criu", "libvirt", "qemu", "image", "wireguard")
"""The doctor's findings that belong into the environment of a measurement."""


def versions(findings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The doctor's findings to store as the environment of a measurement."""
    return {finding["name"]: finding["text"] for finding in findings if finding["name"] in _VERSIONS}


def no_post_copy() -> str:
    """Why virtual machines on emulated hosts cannot be moved by post-copy; empty when they can."""
    if not _USERFAULTFD.exists():
        return "this kernel has no userfaultfd, by which memory that is not there yet is fetched"
    if _USERFAULTFD.read_text().strip() != "1" and not _USERFAULTFD_DEVICE.exists():
        return "QEMU may not use userfaultfd: there is no /dev/userfaultfd, and vm.unprivileged_userfaultfd is not 1"
    return ""


def no_vhost(emulated: bool) -> str:
    """Why the kernel cannot handle the frames of VM nodes; empty when it can."""
    if emulated:
        return "vhost-net needs KVM: the kernel cannot access the memory of an emulated guest"
    return "" if _VHOST_DEVICE.exists() else f"there is no {_VHOST_DEVICE} (modprobe vhost_net)"


def _no_adapters() -> dict[str, str]:
    """Models of network adapters that this machine's QEMU or the image `default` lacks."""
    emulator, record = shutil.which("qemu-system-x86_64"), images_directory() / "default" / "image.json"
    if not emulator or not record.exists():
        return {}  # no VM nodes at all, which has a reason of its own
    done = subprocess.run([emulator, "-device", "help"], capture_output=True, text=True, timeout=60, check=False)
    devices = set(re.findall(r'^name "([^"]+)"', done.stdout, re.MULTILINE))
    driven = Image.model_validate_json(record.read_text()).adapters
    reasons = {}
    for model in ADAPTER_DRIVERS:
        if qemu_device(model) not in devices:
            reasons[f"{NO_ADAPTER}{model}"] = f"this machine's QEMU has no {model}"
        elif model not in driven:
            why = f"the image has no driver for {model} (wherry image build)"
            reasons[f"{NO_ADAPTER}{model}"] = why
    return reasons


def unavailable_features(findings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Feature -> reason: from the doctor's findings, programs that were not built, and packages that are not
    installed."""
    reasons = {finding["name"]: finding["text"] for finding in findings if finding["health"] != "ok"}
    if missing := [reasons[name] for name in _VM_NEEDS if name in reasons]:
        reasons[VM] = missing[0]
    if KVM in reasons and "qemu" in reasons:  # QEMU's limitation applies to emulation only
        reasons[VM_MOVES] = reasons["qemu"]
    reasons |= _no_adapters()
    if why := no_vhost(KVM in reasons):
        reasons[VHOST] = why
    if KVM not in reasons and not KVM_COUNTERS.is_dir():
        reasons[KVM_COUNTS] = f"{KVM_COUNTERS} is not there: mount -t debugfs debugfs /sys/kernel/debug"
    if why := no_post_copy():
        reasons[POST_COPY] = why
    for name in _OPTIONAL_PROGRAMS:
        try:
            native_program(name)
        except Refused as error:
            reasons[name] = str(error)
    for name, package in INSTALLED.items():
        if not shutil.which(name):
            reasons[name] = f"{name} is not installed; it is in Debian's {package}: {packages(package)}"
    return reasons | applications.missing_applications() | sites.machine_cpus(len(os.sched_getaffinity(0)))


def vms_are_emulated(unavailable: Mapping[str, str]) -> bool:
    """True if VMs run without KVM: they are slow, so studies reduce their runs on them."""
    return KVM in unavailable


def vm_processor_text(unavailable: Mapping[str, str]) -> str:
    """How VMs are run (KVM, TCG, not at all), for the report."""
    if why := unavailable.get(VM, ""):
        return f"none: {why}"
    return f"emulated (TCG): {unavailable[KVM]}" if KVM in unavailable else "run by KVM"


def emulated_combinations(study: Design) -> list[Combination]:
    """The combinations with VMs without KVM: all that would be absent if VMs were unavailable."""
    if KVM not in study.unavailable or VM in study.unavailable:
        return []
    missing = study.lacking(**{VM: "none"}).combinations()
    return [combination for combination in study.combinations() if combination not in missing]


def why_no_vms(unavailable: Mapping[str, str], quick: bool, *, moved: bool = False, heavy: bool = False) -> str:
    """Why a level with VMs is left out; empty if it is measured. `moved` VMs and `heavy` programs have further
    conditions."""
    if why := unavailable.get(VM, ""):
        return why
    if quick:
        return "not with --quick: virtual machines take minutes to boot"
    if moved and (why := unavailable.get(VM_MOVES, "")):
        return why
    if heavy and (why := unavailable.get(KVM, "")):
        return f"{why}, so this program would take hours on them"
    return ""
