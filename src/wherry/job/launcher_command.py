"""The command line, environment and files with which an MPI's own launcher starts ranks on nodes.

Pure: it computes the command, `jobs` runs it. Invariants: only addresses of the cluster's network are used; TCP is the
only transport between nodes (a connection must survive a move) and within a container; the launcher's own variables do
not reach the ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import SecretStr

from wherry.job import preload
from wherry.job.mpi import Family, Mpi
from wherry.job.rank_map import RankMap, is_in_blocks, node_slots
from wherry.model.inherited import Inherited, LimitName
from wherry.model.job_request import Program
from wherry.model.owner import Owner
from wherry.model.records import CONTROL_PORT, Node
from wherry.node.rank_sites import site_runs
from wherry.node.ranks import MARK

INTERFACE = "eth0"
"""Name of a node's (and the head's) interface in the cluster's network."""

SITES = "WHERRY_MPI_SITES"
"""Variable with the map of ranks to sites for libwherry-mpi.so (native/mpi/levels.h)."""

IN_ORDER = "WHERRY_MPI_IN_ORDER"
"""Variable by which libwherry-mpi.so reduces in the order of ranks (native/mpi/ordered.h)."""

BY_RANKS = {"coll": "^han,sm,adapt,hcoll,ucc,xhc,acoll", "topo": "^treematch", "op": "^avx,aarch64"}
"""Parameters of Open MPI with which results depend on ranks alone. Without: collectives that depend on nodes, or reduce
in the order in which messages come; ranks that are renumbered by nodes; operators that differ between processors (and
within a buffer) for values of which none is greater."""
PLACE_SPAWNED = "WHERRY_PLACE_SPAWNED"
"""Variable that has libwherry-mpi.so ask for the nodes of spawned processes (native/mpi/placement.h)."""

_PACKED = "WHERRY_ENV_"
"""Variables 0, 1, … that each hold another one (native/rsh/main.c)."""
_LIMITS = "WHERRY_LIMITS"
"""Variable with the `Inherited` of a rank, where the launcher's daemon has other limits (native/rsh/main.c)."""
_DAEMON_LIMITS: Mapping[LimitName, int | None] = {
    **dict.fromkeys(("as", "cpu", "data", "fsize")),
    **{"nofile": 1024, "stack": 8 << 20},
}
"""The least limits of the launcher's daemon on a node, None being unlimited: with less it may die without a word."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""The name of a variable, as shells take it."""
_MAX_SHOWN = 80
"""Characters of a command line that an event shows; the row has all of it."""

_FOREIGN = ("WHERRY_", "SLURM_", "PBS_", "LSB_", "PMI_", "PMIX_", "OMPI_COMM_", "HYDRA_", "HYDI_")
"""Prefixes of variables by which a launcher would detect another scheduler or an outer job."""

_ASAN, _LATER = "ASAN_OPTIONS", "verify_asan_link_order=0"
"""AddressSanitizer ends a program before which another library was loaded, unless this is set."""
_CACHE = {"PMIX_MCA_pmix_max_iof_cache": "16"}
"""Messages of output that Open MPI 5 keeps for tools that might come: by default a million, some GiB of memory."""
_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


@dataclass(frozen=True)
class LaunchRequest:
    """The job to launch. `directory` is writable by the job's user. `keys`: the secret of each node's agent, by node
    name. `agent`, `preloads` and `launcher_preloads` (see `job.preload`) are files of Wherry, at the same path on every
    node.

    `programs` have the paths that are to be started. `map`: the node of each rank.

    `ranks_per_cpu`: ranks of all jobs per physical processor; above 1, waiting ranks take time from computing ones.
    `whole`: all nodes are virtual machines, which move with all their memory, so their ranks may use shared memory.
    `plain`: nothing of Wherry is inside MPI, so no library of ours lets waiting ranks sleep.
    `sites`: the site of each host, if collectives are to use it. `deterministic`: reductions of floating point are not
    to depend on where ranks are. `inside`: the environment with which ranks ask the daemon. `spawned_on`: nodes that
    may get processes which the program spawns, if the daemon is to choose among them.
    """

    id: str
    mpi: Mpi
    programs: tuple[Program, ...]
    map: RankMap
    nodes: tuple[Node, ...]
    owner: Owner
    env: dict[str, str]
    inherited: Inherited
    head_address: str
    subnet: str
    keys: Mapping[str, SecretStr]
    directory: Path
    agent: Path
    preloads: tuple[Path, ...] = ()
    launcher_preloads: tuple[Path, ...] = ()
    input: bool = False
    ranks_per_cpu: float = 0.0
    whole: bool = False
    plain: bool = False
    bind_to: str = "none"
    timeout: float | None = None
    launcher_args: tuple[str, ...] = ()
    sites: Mapping[str, str] = field(default_factory=dict)
    deterministic: bool = False
    inside: Mapping[str, str] = field(default_factory=dict, repr=False)  # it has the job's token
    spawned_on: tuple[Node, ...] = ()

    @property
    def ours(self) -> tuple[Path, ...]:
        """Files of Wherry that every node of the job needs."""
        return (self.agent, *self.preloads, *self.launcher_preloads)


@dataclass(frozen=True)
class LaunchPlan:
    """The program to start, and its user: command line, environment, files (name -> text) to write into the job's own
    directory first, and whether it reads input. All text stands for bytes (`wherry.base.bytes_text`). `stream` is the
    descriptor of a pipe for its output, of which nothing is kept then."""

    argv: list[str]
    env: dict[str, str] = field(repr=False)  # it has the job's token
    files: dict[str, str] = field(repr=False)  # one has the nodes' keys
    owner: Owner
    input: bool = False
    stream: int | None = None


def rank_environment(env: dict[str, str], owner: Owner, id: str) -> dict[str, str]:
    """The ranks' environment: the user's variables. Without TMPDIR: a node's /tmp is private and moves with it."""
    kept = {name: value for name, value in env.items() if name != "TMPDIR" and not name.startswith(_FOREIGN)}
    defaults = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": owner.home, "OMP_NUM_THREADS": "1"}
    return {**defaults, **kept, MARK: id}


def plan(request: LaunchRequest) -> LaunchPlan:
    """The command, environment and files that start the job with its MPI's launcher."""
    ranks, request = _by_the_agent(rank_environment(request.env, request.owner, request.id), request)
    make = _openmpi if request.mpi.family is Family.OPENMPI else _mpich
    tuned, argv, hosts = make(request, ranks)
    ranks |= tuned
    if request.sites:
        ranks[SITES] = site_runs([request.sites[node.host] for node in request.map])
        ranks |= {IN_ORDER: "1"} if request.deterministic else {}
    ranks |= request.inside
    if request.preloads or request.launcher_preloads:
        ranks[_ASAN] = ":".join(filter(None, (_LATER, ranks.get(_ASAN))))
    if request.spawned_on:
        ranks[PLACE_SPAWNED] = "1"
    if request.launcher_preloads:
        ranks["LD_PRELOAD"] = preload.variable(request.launcher_preloads, ranks)
    private = {"WHERRY_JOB": str(request.directory / "job"), "TMPDIR": str(request.directory)}
    files = {**hosts, "job": _job_file(request.owner, request.nodes, request.keys, ranks, request.inherited)}
    return LaunchPlan(argv, ranks | private, files, request.owner, request.input)


def _by_the_agent(ranks: dict[str, str], request: LaunchRequest) -> tuple[dict[str, str], LaunchRequest]:
    """Has the agent become each rank's program where a rank is to have an environment that cannot come to it by the
    launcher's daemon: variables that the shell which starts that drops (exported functions of bash), and limits that
    would end it."""
    odd = [name for name in ranks if not _NAME.fullmatch(name)]
    inherited = request.inherited.with_least(_DAEMON_LIMITS)
    if not odd and inherited == request.inherited:
        return ranks, request
    usual = {name: value for name, value in ranks.items() if name not in odd}
    packed = {f"{_PACKED}{number}": f"{name}={ranks[name]}" for number, name in enumerate(odd)}
    prefix = (str(request.agent), "--environment")
    programs = tuple(one.model_copy(update={"argv": (*prefix, *one.argv)}) for one in request.programs)
    if inherited != request.inherited:
        packed[_LIMITS] = request.inherited.text
    return usual | packed, replace(request, programs=programs, inherited=inherited)


def plan_exec(
    id: str,
    directory: Path,
    agent: Path,
    node: Node,
    key: SecretStr,
    owner: Owner,
    argv: Sequence[str],
    env: dict[str, str],
    input: bool,
    inherited: Inherited,
) -> LaunchPlan:
    """The plan to run one program on one node by the agent that launchers use. No shell reads `argv`."""
    theirs = rank_environment(env, owner, id)
    ours = {"WHERRY_JOB": str(directory / "job"), "TMPDIR": str(directory), "PATH": "/usr/bin:/bin"}
    files = {"job": _job_file(owner, (node,), {node.name: key}, theirs, inherited)}
    return LaunchPlan([str(agent), "--exec", node.address, *argv], ours, files, owner, input)


def _openmpi(request: LaunchRequest, ranks: dict[str, str]) -> tuple[dict[str, str], list[str], dict[str, str]]:
    """Open MPI. Version 5 starts its daemons with PRRTE, whose parameters have another prefix. Each program has a host
    file: by slots, or, where ranks of a node do not follow one another, with a line for each rank (`seq`). It spawns
    processes only on nodes of these files. Version 5 takes the files of several programs for one name, so there each
    has the nodes of its ranks in a word."""
    agent, net = str(request.agent), request.subnet
    shared = "sm" if request.mpi.version[0] >= 5 else "vader"
    ours = {
        "pml": "ob1",
        "btl": f"{shared},tcp,self" if request.whole else "tcp,self",
        "osc": "^ucx",  # one-sided transfers open UCX whatever the pml is
        "btl_tcp_if_include": net,
    }
    if request.deterministic:
        ours |= BY_RANKS
    # Open MPI detects oversubscription only within one of its nodes, not among nodes on one machine. In containers
    # libwherry-wait.so does more than yield.
    if (request.whole or request.plain) and preload.YIELD not in request.env and request.ranks_per_cpu > 1:
        ours["mpi_yield_when_idle"] = "1"
    old = {"plm": "rsh", "plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": "1", "oob_tcp_if_include": net}
    new = {"plm": "ssh", "plm_ssh_agent": agent, "plm_ssh_no_tree_spawn": "1", "prte_if_include": net}
    env = {f"OMPI_MCA_{name}": value for name, value in ours.items()}
    if request.mpi.version[0] >= 5:
        env |= {f"PRTE_MCA_{name}": value for name, value in new.items()} | _CACHE
    else:
        env |= {f"OMPI_MCA_{name}": value for name, value in old.items()}
    if request.owner.uid == 0:
        env |= _ROOT
    simple = len(request.programs) == 1 and is_in_blocks(request.map)
    argv = [str(request.mpi.launcher), "--map-by", "slot:OVERSUBSCRIBE" if simple else "seq:OVERSUBSCRIBE"]
    # without the word, ranks of several nodes would not be started on a machine with fewer cores
    argv += ["--bind-to", "none" if request.bind_to == "none" else f"{request.bind_to}:overload-allowed"]
    if request.timeout:
        argv += ["--timeout", str(math.ceil(request.timeout))]
    argv += request.launcher_args
    files, begun = dict[str, str](), 0
    for number, program in enumerate(request.programs):
        name, map_ = f"hosts{number or ''}", request.map[begun : begun + program.ranks]
        line = "{0.address} slots={0.slots}\n" if simple else "{0.address}\n"
        files[name] = "".join(line.format(seat) for seat in (node_slots(map_) if simple else map_))
        with_ranks = {node.address for node in map_}
        files[name] += "".join(f"{n.address} slots=0\n" for n in request.spawned_on if n.address not in with_ranks)
        begun += program.ranks
        argv += [":"] if number else []
        argv += ["-n", str(program.ranks)]
        if request.mpi.version[0] >= 5 and len(request.programs) > 1:
            argv += ["--host", ",".join(node.address for node in map_)]
        else:
            argv += ["--hostfile", str(request.directory / name)]
        if request.preloads:
            argv += ["-x", f"LD_PRELOAD={preload.variable(request.preloads, request.env)}"]
        argv += program.argv
    return env, argv, files


def _mpich(request: LaunchRequest, ranks: dict[str, str]) -> tuple[dict[str, str], list[str], dict[str, str]]:
    """MPICH, whose launcher is hydra; netmod ucx (Debian's) or ofi, both on TCP, also inside a container."""
    env = {
        # With 1 each rank is a node to the library, so none of its algorithms depends on places.
        "MPIR_CVAR_NOLOCAL": "0" if request.whole and not request.deterministic else "1",
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": INTERFACE,
        "UCX_TCP_KEEPIDLE": "inf",  # no keep-alives: a peer frozen for 16 s would be dropped, and the job would hang
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": INTERFACE,
    }
    argv = [str(request.mpi.launcher), "-launcher", "rsh", "-launcher-exec", str(request.agent)]
    argv += ["-rmk", "user", "-localhost", request.head_address, "-f", str(request.directory / "hosts")]
    # The agent sets the ranks' environment; hydra would pass the launcher's own. Told for each program: -genvnone would
    # keep hydra 5 from spawning processes on a node that has some. Spawned ones have the launcher's all the same.
    argv += ["-genv", "TMPDIR", "/tmp"]
    if request.preloads:
        argv += ["-genv", "LD_PRELOAD", preload.variable(request.preloads, ranks)]
    if request.bind_to != "none":
        argv += ["-bind-to", request.bind_to]
    if request.timeout:
        env["MPIEXEC_TIMEOUT"] = str(math.ceil(request.timeout))
    argv += request.launcher_args
    for number, program in enumerate(request.programs):
        argv += [":"] if number else []
        argv += ["-n", str(program.ranks), "-envnone", *program.argv]
    return env, argv, {"hosts": "".join(f"{seat.address}:{seat.slots}\n" for seat in node_slots(request.map))}


def _job_file(
    owner: Owner,
    nodes: Iterable[Node],
    keys: Mapping[str, SecretStr],
    variables: Mapping[str, str],
    inherited: Inherited,
) -> str:
    """The job file that the agent reads (native/rsh/jobfile.h)."""
    entries = [f"user {owner.uid} {owner.gid} {','.join(map(str, owner.groups))}".rstrip(), f"cwd {owner.cwd}"]
    entries += [f"inherited {inherited.text}"]
    entries += [
        f"node {node.name} {node.address} {CONTROL_PORT} {keys[node.name].get_secret_value()}" for node in nodes
    ]
    entries += [f"env {name}={value}" for name, value in variables.items()]
    return "".join(f"{entry}\0" for entry in entries)


def shortened(argv: Sequence[str]) -> str:
    """A command line for an event, which every user of the daemon may read."""
    text = " ".join(argv)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
