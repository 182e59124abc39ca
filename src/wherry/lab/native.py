"""How a program is run natively over a transport: what its launcher is told, so that it is the same everywhere.

`shm` is shared memory; `tcp` is TCP over the loopback interface, as the machine's others may reach nobody, not even
themselves (Open MPI 5 finds no pair of addresses on an interface with both IPv4 and IPv6).
"""

from __future__ import annotations

import os

LAUNCHERS = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.mpich"}


def options(mpi: str, transport: str) -> list[str]:
    """Words behind the launcher's name."""
    if mpi == "mpich":
        return []
    btl = "vader,self" if transport == "shm" else "tcp,self"
    over = [] if transport == "shm" else ["--mca", "btl_tcp_if_include", "lo"]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [*root, "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", btl, *over]


def environment(mpi: str, transport: str) -> dict[str, str]:
    """Variables to add."""
    if mpi == "openmpi" or transport == "shm":
        return {}
    return {
        "MPIR_CVAR_NOLOCAL": "1",
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "lo",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "lo",
    }
