"""Launcher options and environment for native MPI runs over a given transport, the same on every machine.

`shm` is shared memory. `tcp` is TCP over the loopback interface only, because other interfaces may be unusable (Open
MPI 5 pairs no addresses on an interface with both IPv4 and IPv6). Settings that let ranks on a cluster terminate and
survive a pause are applied to native ranks too (docs/design/0005-jobs.md, Transports).
"""

from __future__ import annotations

import os

from wherry.base.paths import native_library

LAUNCHERS = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich"}
_FINALIZE, _WAIT = "libwherry-finalize.so", "libwherry-wait.so"


def options(mpi: str, transport: str) -> list[str]:
    """Arguments that follow the launcher's name."""
    if mpi == "mpich":  # over TCP, MPICH before 4.2 may hang in MPI_Finalize; harmless for later versions
        loaded = " ".join(filter(None, (_FINALIZE, os.environ.get("LD_PRELOAD"))))
        return [] if transport == "shm" else ["-genv", "LD_PRELOAD", loaded, "-genv", "LD_LIBRARY_PATH", _libraries()]
    btl = "vader,self" if transport == "shm" else "tcp,self"
    over = [] if transport == "shm" else ["--mca", "btl_tcp_if_include", "lo"]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*root, "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", btl, *over]


def _libraries() -> str:
    """LD_LIBRARY_PATH with the directory of our library first. LD_PRELOAD separates entries by blanks, so it names the
    library without its path, which may contain one."""
    return ":".join(filter(None, (str(native_library(_FINALIZE).parent), os.environ.get("LD_LIBRARY_PATH"))))


def waiting_as_on_nodes(mpi: str) -> list[str]:
    """Words before a program's, by which its ranks wait as those on container nodes do. For TCP alone: messages
    through shared memory wake no rank that sleeps."""
    names = (_WAIT, *([_FINALIZE] if mpi == "mpich" else []), os.environ.get("LD_PRELOAD"))
    return ["/usr/bin/env", f"LD_LIBRARY_PATH={_libraries()}", f"LD_PRELOAD={' '.join(filter(None, names))}"]


def environment(mpi: str, transport: str) -> dict[str, str]:
    """Environment variables to add."""
    if mpi == "openmpi" or transport == "shm":
        return {}
    return {
        "MPIR_CVAR_NOLOCAL": "1",
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "lo",
        "UCX_TCP_KEEPIDLE": "inf",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "lo",
    }
