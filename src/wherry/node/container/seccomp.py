"""The seccomp profile of container nodes: system calls that a program without capabilities may make, and that either
reach much of the kernel or leave state that CRIU cannot carry.

It is a list of denied calls, as nearly everything else that Docker's profile denies needs a capability that no process
of a node has. A denied call fails with EPERM; clone3 with ENOSYS, as its flags lie in memory that no filter reads, and
the C library then calls clone.
Nodes of accounts (wherry.model.accounts), whose users are unknown here, are denied more: all that Docker's profile
denies without a capability, and families of sockets that no program of a cluster needs.
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
_DENIED_TO_ACCOUNTS = (
    *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("mount_setattr", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"),
    *("swapon", "swapoff", "quotactl", "quotactl_fd", "acct", "settimeofday", "clock_settime", "syslog", "vhangup"),
    *("name_to_handle_at", "open_by_handle_at", "ptrace", "kcmp", "lookup_dcookie", "nfsservctl", "iopl", "ioperm"),
    *("fanotify_init", "setns", "unshare", "pidfd_getfd", "sethostname", "setdomainname", "chroot"),
)
_SOCKETS_DENIED_TO_ACCOUNTS = (15, 17, 21, 29, 30, 31, 38, 40, 43, 44)
"""AF_KEY, AF_PACKET, AF_RDS, AF_CAN, AF_TIPC, AF_BLUETOOTH, AF_ALG, AF_VSOCK, AF_SMC, AF_XDP (linux/socket.h)."""
_NEW_USER = 0x10000000
"""CLONE_NEWUSER (linux/sched.h): root of a user namespace of one's own has every capability in it."""
_MAKES_NAMESPACES = ("clone", "unshare")


def profile(of_account: bool = False) -> dict[str, object] | None:
    """`linux.seccomp` of the OCI configuration, for a node `of_account` or of a user of the machine; None where it
    cannot be had."""
    if not _available():
        return None
    return _PROFILE_OF_ACCOUNTS if of_account else _PROFILE


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


def _without(*rules: dict[str, object]) -> dict[str, object]:
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": list(rules),
    }


def _socket_rule(family: int) -> dict[str, object]:
    args = [{"index": 0, "value": family, "op": "SCMP_CMP_EQ"}]
    return {"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EAFNOSUPPORT, "args": args}


_RULES = (_rule(*_DENIED), _rule("clone3", error=errno.ENOSYS))
_PROFILE = _without(*_RULES, _rule(*_MAKES_NAMESPACES, flag=_NEW_USER))
_PROFILE_OF_ACCOUNTS = _without(
    *_RULES,
    _rule("clone", flag=_NEW_USER),
    _rule(*_DENIED_TO_ACCOUNTS),
    *map(_socket_rule, _SOCKETS_DENIED_TO_ACCOUNTS),
)
