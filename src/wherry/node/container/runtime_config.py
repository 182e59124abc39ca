"""The OCI runtime's configuration of a container: https://github.com/opencontainers/runtime-spec.

Nodes have it, and the sandbox in which the launcher of an account's job runs: so one is as strict as the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wherry.model.accounts import is_account
from wherry.model.records import CONTROL_PORT
from wherry.node.container import limits, seccomp
from wherry.node.container.mounts import MASKED_DIRECTORIES, MASKED_FILES, READ_ONLY, Layout
from wherry.node.protocol import Placement

_CAPABILITIES = [
    f"CAP_{name}"
    for name in (
        *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
        *("NET_BIND_SERVICE", "NET_RAW", "IPC_LOCK", "SYS_NICE"),
    )
]
_CAPABILITIES_OF_ACCOUNTS = ["CAP_KILL", "CAP_SETGID", "CAP_SETUID"]
"""Capabilities of the first process of a node of an account: it starts programs as the account, and ends them."""
_TERMINALS = 256
"""Terminals of a container: all have theirs of one number of the kernel (kernel.pty.max)."""


@dataclass(frozen=True)
class Process:
    """The first process of a container."""

    args: Sequence[str]
    uid: int = 0
    gid: int = 0
    groups: Sequence[int] = ()
    cwd: str = "/"
    capabilities: Sequence[str] = ()


def of_node(placement: Placement, layout: Layout) -> dict[str, object]:
    """The configuration of a node."""
    listen = ("--listen", f"{placement.node.address}:{CONTROL_PORT}", "--key-file", "/run/wherry/key")
    process = Process(
        args=["/run/wherry/init", *listen, "--user", placement.user],
        capabilities=_CAPABILITIES_OF_ACCOUNTS if is_account(placement.owner.uid) else _CAPABILITIES,
    )
    return config(layout, process, placement.node.name, placement.cgroup, placement.netns)


def config(layout: Layout, process: Process, hostname: str, cgroup: str, netns: str) -> dict[str, object]:
    """The configuration of a container with these mounts and this first process."""
    mounts: list[dict[str, object]] = [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "nodev", "noexec"]}
    ]
    for bind in layout.binds:
        options = ["bind", "rprivate", *bind.options()]
        mounts.append({"destination": bind.inside, "type": "bind", "source": bind.outside, "options": options})
    options = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", f"max={_TERMINALS}"]
    mounts.append({"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": options})
    filters = seccomp.profile(is_account(layout.owner.uid))
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": process.uid, "gid": process.gid, "additionalGids": list(process.groups)},
            "args": list(process.args),
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"],
            "cwd": process.cwd,
            "capabilities": {name: list(process.capabilities) for name in ("bounding", "effective", "permitted")},
            "noNewPrivileges": True,
            "rlimits": limits.open_files(),
        },
        # It is a read-only mount already; the runtime's own way to make it one drops its nosuid and nodev.
        "root": {"path": str(layout.root), "readonly": False},
        "hostname": hostname,
        "mounts": mounts,
        "linux": {
            "cgroupsPath": f"/{cgroup}",
            "namespaces": [*namespaces, {"type": "network", "path": netns}],
            "rootfsPropagation": "private",
            "maskedPaths": [*MASKED_FILES, *MASKED_DIRECTORIES, *layout.hidden],
            "readonlyPaths": list(READ_ONLY),
            **({"seccomp": filters} if filters else {}),
        },
    }
