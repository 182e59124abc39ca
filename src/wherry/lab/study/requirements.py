"""What this machine cannot do and a level of a study may need: asked once, when a study begins, and kept with it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from wherry.base.errors import Refused
from wherry.base.paths import native_program
from wherry.lab.study import applications
from wherry.lab.study.design import Design
from wherry.lab.study.levels import Combination

VM = "vm"
"""Why there are no virtual machines as nodes."""
VM_MOVES = "vm-moves"
"""Why they cannot be moved."""
POST_COPY = "post-copy"
"""Why they cannot run at a host before their memory is there."""
_KVM = "kvm"
_USERFAULTFD = Path("/proc/sys/vm/unprivileged_userfaultfd")
"""There when the kernel has it; emulated hosts' QEMU is root's, so what it says does not matter."""
_VM_NEEDS = ("libvirt", "image")
"""The doctor's findings without which there are none; without KVM they are emulated, and slow."""


_OPTIONAL_PROGRAMS = ("npb-sp-openmpi", "wherry-linpack")
"""Programs of ours that a machine may not have been able to build: without an MPI, without LAPACK."""
INSTALLED = {
    "hpcc": "hpcc",
    "NPopenmpi": "netpipe-openmpi",
    "NPmpich2": "netpipe-mpich2",
    "ping": "iputils-ping",
    "mpirun.openmpi": "openmpi-bin",
    "mpiexec.mpich": "mpich",
}
"""Programs of the distribution that studies run, with their packages."""
_VERSIONS = ("criu", "libvirt", "qemu", "image", "wireguard")
"""The doctor's findings that name what moves, runs and joins nodes."""


def versions(findings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What of the doctor's findings belongs to the environment that numbers were taken in."""
    return {finding["name"]: finding["text"] for finding in findings if finding["name"] in _VERSIONS}


def unavailable_features(findings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Name -> reason: the doctor's findings, programs that were not built, applications that are not installed."""
    reasons = {finding["name"]: finding["text"] for finding in findings if finding["health"] != "ok"}
    if missing := [reasons[name] for name in _VM_NEEDS if name in reasons]:
        reasons[VM] = missing[0]
    if _KVM in reasons and "qemu" in reasons:  # only where it emulates
        reasons[VM_MOVES] = reasons["qemu"]
    if not _USERFAULTFD.exists():
        reasons[POST_COPY] = "this kernel has no userfaultfd, by which memory that is not there yet is fetched"
    for name in _OPTIONAL_PROGRAMS:
        try:
            native_program(name)
        except Refused as error:
            reasons[name] = str(error)
    for name, package in INSTALLED.items():
        if not shutil.which(name):
            reasons[name] = f"{name} is not installed; it is in Debian's {package}: make setup"
    return reasons | applications.missing_applications()


def vms_are_emulated(unavailable: Mapping[str, str]) -> bool:
    """True where virtual machines have no KVM: they are slow, and what is run on them is cut."""
    return _KVM in unavailable


def vm_processor_text(unavailable: Mapping[str, str]) -> str:
    """What the processors of virtual machines are, for the report."""
    if why := unavailable.get(VM, ""):
        return f"none: {why}"
    return f"emulated (TCG): {unavailable[_KVM]}" if _KVM in unavailable else "run by KVM"


def emulated_combinations(study: Design) -> list[Combination]:
    """The combinations with virtual machines whose processors were emulated: those that are not there without any."""
    if _KVM not in study.unavailable or VM in study.unavailable:
        return []
    missing = type(study)(study.quick, {**study.unavailable, VM: "none"}).combinations()
    return [combination for combination in study.combinations() if combination not in missing]


def why_no_vms(unavailable: Mapping[str, str], quick: bool, *, moved: bool = False, heavy: bool = False) -> str:
    """Why a level with virtual machines is left out, empty when it is not: which `moved` ones and `heavy` programs are
    even where others can be measured."""
    if why := unavailable.get(VM, ""):
        return why
    if quick:
        return "not with --quick: virtual machines take minutes to boot"
    if moved and (why := unavailable.get(VM_MOVES, "")):
        return why
    if heavy and (why := unavailable.get(_KVM, "")):
        return f"{why}, so this program would take hours on them"
    return ""
