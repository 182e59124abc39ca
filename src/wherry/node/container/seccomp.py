"""The seccomp profile of container nodes: system calls that a program without capabilities may make, and that either
reach much of the kernel or leave state that CRIU cannot carry.

It is a list of what is denied, as nearly everything else that Docker's profile denies needs a capability that no
process of a node has. A denied call fails with EPERM; clone3 with ENOSYS, as its flags lie in memory that no filter
reads, and the C library then calls clone.
Invariant: a node has the profile only where CRIU can dump it again: the kernel shows a process's filters to nobody who
is under a filter.
"""

from __future__ import annotations

import errno
import functools
import subprocess
from pathlib import Path

from wherry.fabric.host_facts import runtime

_DENIED = (
    *("add_key", "keyctl", "request_key"),
    *("bpf", "perf_event_open", "userfaultfd"),
    *("io_uring_enter", "io_uring_register", "io_uring_setup"),
)
_NEW_USER = 0x10000000
"""CLONE_NEWUSER (linux/sched.h): root of a user namespace of one's own has every capability in it."""
_MAKES_NAMESPACES = ("clone", "unshare")


def profile() -> dict[str, object] | None:
    """`linux.seccomp` of the OCI configuration; None where it cannot be had."""
    return _PROFILE if _available() else None


@functools.cache
def _available() -> bool:
    if "Seccomp:\t0\n" not in Path("/proc/self/status").read_text():
        return False  # a kernel without filters, or this process is under one
    done = subprocess.run([runtime(), "--version"], capture_output=True, text=True, timeout=30, check=False)
    return "libseccomp:" in done.stdout or "+SECCOMP" in done.stdout  # runc's words, and crun's


def _rule(*names: str, error: int = errno.EPERM, flag: int = 0) -> dict[str, object]:
    rule: dict[str, object] = {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": error}
    if flag:
        rule["args"] = [{"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}]
    return rule


_PROFILE: dict[str, object] = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
    "syscalls": [
        _rule(*_DENIED),
        _rule(*_MAKES_NAMESPACES, flag=_NEW_USER),
        _rule("clone3", error=errno.ENOSYS),
    ],
}
