"""The command line, environment and files with which an MPI's own launcher starts ranks on nodes.

Pure: it computes the command, `jobs` runs it. Invariants: only addresses of the cluster's network are used; TCP is the
only transport between nodes (a connection must survive a move) and within a container; the launcher's own variables do
not reach the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from wherry.job import preload
from wherry.job.mpi import Family, Mpi
from wherry.model.owner import Owner
from wherry.model.records import CONTROL_PORT, Node

INTERFACE = "eth0"
"""Name of a node's (and the head's) interface in the cluster's network."""

MARK = "WHERRY_JOB_ID"
"""Variable in the environment of every process of a job on a node, by which leftovers are found."""

_FOREIGN = ("WHERRY_", "SLURM_", "PBS_", "LSB_", "PMI_", "PMIX_", "OMPI_COMM_", "HYDRA_", "HYDI_")
"""Prefixes of variables by which a launcher would detect another scheduler or an outer job."""

_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


@dataclass(frozen=True)
class NodeSlots:
    """A node's share of the ranks."""

    name: str
    address: str
    slots: int


@dataclass(frozen=True)
class LaunchRequest:
    """What to launch. `directory` is writable by the job's user. `keys`: the secret of each node's agent, by node name.
    `agent` and `preloads` (see `job.preload`) are files of Wherry, at the same path on every node.

    `crowd`: ranks of all jobs per physical processor; above 1, waiting ranks take time from computing ones.
    `whole`: all nodes are virtual machines, which move with all their memory, so their ranks may use shared memory.
    """

    id: str
    mpi: Mpi
    argv: tuple[str, ...]
    ranks: int
    nodes: tuple[Node, ...]
    owner: Owner
    env: dict[str, str]
    head_address: str
    subnet: str
    keys: Mapping[str, SecretStr]
    directory: Path
    agent: Path
    preloads: tuple[Path, ...] = ()
    input: bool = False
    crowd: float = 0.0
    whole: bool = False

    @property
    def ours(self) -> tuple[Path, ...]:
        """Files of Wherry that every node of the job needs."""
        return (self.agent, *self.preloads)


@dataclass(frozen=True)
class LaunchPlan:
    """What to start: command line, environment, and files (name -> text) to write into the job's directory first."""

    argv: list[str]
    env: dict[str, str]
    files: dict[str, str] = field(repr=False)  # one has the nodes' keys


def slots_by_node(nodes: Sequence[Node], ranks: int) -> list[NodeSlots]:
    """Ranks in contiguous blocks, as even as possible; nodes without a rank are omitted."""
    share, more = divmod(ranks, len(nodes))
    shares = [share + (index < more) for index in range(len(nodes))]
    return [NodeSlots(node.name, node.address, slots) for node, slots in zip(nodes, shares, strict=True) if slots]


def rank_environment(env: dict[str, str], owner: Owner, id: str) -> dict[str, str]:
    """The ranks' environment: the user's variables. Without TMPDIR: a node's /tmp is private and moves with it."""
    kept = {
        name: value
        for name, value in env.items()
        if name and name != "TMPDIR" and not name.startswith(_FOREIGN)
        if "=" not in name and not {"\n", "\0"} & set(name + value)
    }
    defaults = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": owner.home, "OMP_NUM_THREADS": "1"}
    return {**defaults, **kept, MARK: id}


def plan(request: LaunchRequest) -> LaunchPlan:
    """The command, environment and files that start the job with its MPI's launcher."""
    ranks = rank_environment(request.env, request.owner, request.id)
    share = slots_by_node(request.nodes, request.ranks)
    if request.mpi.family is Family.OPENMPI:
        tuned, argv, hosts = _openmpi(request, share)
    else:
        tuned, argv, hosts = _mpich(request, share, ranks)
    ranks |= tuned
    private = {"WHERRY_JOB": str(request.directory / "job"), "TMPDIR": str(request.directory)}
    files = {"hosts": hosts, "job": _job_file(request, ranks)}
    return LaunchPlan([*argv, *request.argv], ranks | private, files)


def _openmpi(request: LaunchRequest, share: list[NodeSlots]) -> tuple[dict[str, str], list[str], str]:
    """Open MPI. Version 5 starts its daemons with PRRTE, whose parameters have another prefix."""
    agent, net = str(request.agent), request.subnet
    shared = "sm" if request.mpi.version[0] >= 5 else "vader"
    ours = {
        "pml": "ob1",
        "btl": f"{shared},tcp,self" if request.whole else "tcp,self",
        "osc": "^ucx",  # one-sided transfers open UCX whatever the pml is
        "btl_tcp_if_include": net,
    }
    # Open MPI detects oversubscription only within one of its nodes, not among virtual machines on one machine. In
    # containers libwherry-wait.so does more than yield.
    if request.whole and preload.YIELD not in request.env and request.crowd > 1:
        ours["mpi_yield_when_idle"] = "1"
    old = {"plm": "rsh", "plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": "1", "oob_tcp_if_include": net}
    new = {"plm": "ssh", "plm_ssh_agent": agent, "plm_ssh_no_tree_spawn": "1", "prte_if_include": net}
    env = {f"OMPI_MCA_{name}": value for name, value in ours.items()}
    if request.mpi.version[0] >= 5:
        env |= {f"PRTE_MCA_{name}": value for name, value in new.items()}
    else:
        env |= {f"OMPI_MCA_{name}": value for name, value in old.items()}
    if request.owner.uid == 0:
        env |= _ROOT
    argv = [str(request.mpi.launcher), "-n", str(request.ranks), "--hostfile", str(request.directory / "hosts")]
    argv += ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
    if request.preloads:
        argv += ["-x", f"LD_PRELOAD={preload.variable(request.preloads, request.env)}"]
    return env, argv, "".join(f"{seat.address} slots={seat.slots}\n" for seat in share)


def _mpich(
    request: LaunchRequest, share: list[NodeSlots], ranks: dict[str, str]
) -> tuple[dict[str, str], list[str], str]:
    """MPICH, whose launcher is hydra; netmod ucx (Debian's) or ofi, both on TCP, also inside a container."""
    env = {
        "MPIR_CVAR_NOLOCAL": "0" if request.whole else "1",
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": INTERFACE,
        "UCX_TCP_KEEPIDLE": "inf",  # no keep-alives: a peer frozen for 16 s would be dropped, and the job would hang
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": INTERFACE,
    }
    argv = [str(request.mpi.launcher), "-launcher", "rsh", "-launcher-exec", str(request.agent)]
    argv += ["-rmk", "user", "-localhost", request.head_address, "-f", str(request.directory / "hosts")]
    # The agent sets the ranks' environment; hydra would pass the launcher's own.
    argv += ["-genvnone"]
    if request.preloads:
        argv += ["-genv", "LD_PRELOAD", preload.variable(request.preloads, ranks)]
    argv += ["-n", str(request.ranks)]
    return env, argv, "".join(f"{seat.address}:{seat.slots}\n" for seat in share)


def _job_file(request: LaunchRequest, ranks: dict[str, str]) -> str:
    """The job file that the agent reads (native/rsh/jobfile.h)."""
    owner = request.owner
    keys = {name: key.get_secret_value() for name, key in request.keys.items()}
    lines = [f"user {owner.uid} {owner.gid} {','.join(map(str, owner.groups))}".rstrip(), f"cwd {owner.cwd}"]
    lines += [f"node {node.name} {node.address} {CONTROL_PORT} {keys[node.name]}" for node in request.nodes]
    lines += [f"env {name}={value}" for name, value in ranks.items()]
    return "\n".join(lines) + "\n"
