"""Launcher options and environment for native MPI runs over a given transport, the same on every machine.

`shm` is shared memory. `tcp` is TCP over the loopback interface only, because other interfaces may be unusable (Open
MPI 5 pairs no addresses on an interface with both IPv4 and IPv6). Settings that let ranks on a cluster terminate and
survive a pause are applied to native ranks too (docs/design/0005-jobs.md, Transports).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.paths import native_library
from wherry.base.remedies import packages

LAUNCHERS = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich"}
_PACKAGES = {"openmpi": "openmpi-bin", "mpich": "mpich"}
_FINALIZE, _WAIT = LIBRARIES = ("libwherry-finalize.so", "libwherry-wait.so")
"""Libraries that native ranks load."""


def launcher(mpi: str) -> str:
    """Path of an MPI's launcher. Refused (UNSUPPORTED) where it is not installed."""
    found = shutil.which(LAUNCHERS[mpi])
    if found is None:
        raise Refused(Code.UNSUPPORTED, f"{LAUNCHERS[mpi]} is not installed", "", packages(_PACKAGES[mpi]))
    return found


def options(mpi: str, transport: str, over: str = "lo", directory: Path | None = None) -> list[str]:
    """Arguments that follow the launcher's name. `over` is the interface, or the networks, of TCP; `directory` has our
    libraries, where ranks on other machines see them."""
    if mpi == "mpich":  # over TCP, MPICH before 4.2 may hang in MPI_Finalize; harmless for later versions
        loaded, path = " ".join(filter(None, (_FINALIZE, os.environ.get("LD_PRELOAD")))), _libraries(directory)
        return [] if transport == "shm" else ["-genv", "LD_PRELOAD", loaded, "-genv", "LD_LIBRARY_PATH", path]
    btl = "vader,self" if transport == "shm" else "tcp,self"
    by = [] if transport == "shm" else ["--mca", "btl_tcp_if_include", over]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*root, "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", btl, *by]


def _libraries(directory: Path | None) -> str:
    """LD_LIBRARY_PATH with the directory of our library first. LD_PRELOAD separates entries by blanks, so it names the
    library without its path, which may contain one."""
    own = directory or native_library(_FINALIZE).parent
    return ":".join(filter(None, (str(own), os.environ.get("LD_LIBRARY_PATH"))))


def waiting_as_on_nodes(mpi: str, directory: Path | None = None) -> list[str]:
    """Words before a program's, by which its ranks wait as those on container nodes do. For TCP alone: messages
    through shared memory wake no rank that sleeps. `directory` as for `options`."""
    names = (_WAIT, *([_FINALIZE] if mpi == "mpich" else []), os.environ.get("LD_PRELOAD"))
    words = [f"LD_LIBRARY_PATH={_libraries(directory)}", f"LD_PRELOAD={' '.join(filter(None, names))}"]
    return ["/usr/bin/env", *words]


def environment(mpi: str, transport: str, over: str = "lo") -> dict[str, str]:
    """Environment variables to add; `over` is the interface of TCP."""
    if mpi == "openmpi" or transport == "shm":
        return {}
    return {
        "MPIR_CVAR_NOLOCAL": "1",
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": over,
        "UCX_TCP_KEEPIDLE": "inf",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": over,
    }
