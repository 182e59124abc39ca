"""How a program is run natively over a transport: what its launcher is told, so that it is the same everywhere.

`shm` is shared memory; `tcp` is TCP over the loopback interface, as the machine's others may reach nobody, not even
themselves (Open MPI 5 finds no pair of addresses on an interface with both IPv4 and IPv6). What a cluster's ranks are
told so that they end and outlast a pause, native ones are told too (docs/design/0005-jobs.md, Transports).
"""

from __future__ import annotations

import os

from wherry.base.paths import native_library

LAUNCHERS = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich"}
_FINALIZE = "libwherry-finalize.so"


def options(mpi: str, transport: str) -> list[str]:
    """Words behind the launcher's name."""
    if mpi == "mpich":  # over TCP those before 4.2 may wait for ever in MPI_Finalize; others do not mind
        loaded = " ".join(filter(None, (_FINALIZE, os.environ.get("LD_PRELOAD"))))
        return [] if transport == "shm" else ["-genv", "LD_PRELOAD", loaded, "-genv", "LD_LIBRARY_PATH", _libraries()]
    btl = "vader,self" if transport == "shm" else "tcp,self"
    over = [] if transport == "shm" else ["--mca", "btl_tcp_if_include", "lo"]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*root, "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", btl, *over]


def _libraries() -> str:
    """LD_LIBRARY_PATH with our library's directory first. LD_PRELOAD is a list with blanks, so it cannot hold a path
    that has one; it names the library, which is found here."""
    return ":".join(filter(None, (str(native_library(_FINALIZE).parent), os.environ.get("LD_LIBRARY_PATH"))))


def environment(mpi: str, transport: str) -> dict[str, str]:
    """Variables to add."""
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
