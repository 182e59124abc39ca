"""`wherry run`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from wherry.base.bytes_text import to_text
from wherry.base.errors import Code, Refused
from wherry.base.interrupts import signals_as_interrupt
from wherry.cli.job_follow import GRACE, Signals, follow, has_input, job_signals, read_input, say_to_terminal
from wherry.cli.names import ClusterName
from wherry.cli.options import checked
from wherry.cli.output import Output, emit, seconds_of
from wherry.client import Client, existing, identity, remote

if TYPE_CHECKING:
    from wherry.model.job_request import Layout, Program

_RANKFILE = re.compile(r"rank\s+(\d{1,5})\s*=\s*([^\s,]+)(?:\s+slots?\s*=\s*\*)?")
_PLACES = Group("Where ranks run", sort_key=1)
_PROGRAM = Group("Environment of ranks", sort_key=2)


def run(
    name: ClusterName | None = None,
    program: str | None = None,
    /,
    *args: Annotated[str, Parameter(allow_leading_hyphen=True)],
    ranks: Annotated[int, Parameter(name=["--ranks", "-n", "-np"])],
    mpi: str | None = None,
    expect: str | None = None,
    timeout: str | None = None,
    grace: str | None = None,
    detach: bool = False,
    up: Path | None = None,
    map_by: Annotated[str | None, Parameter(group=_PLACES)] = None,
    rank_by: Annotated[str | None, Parameter(group=_PLACES)] = None,
    hosts: Annotated[str | None, Parameter(name=["--hosts", "--host"], group=_PLACES)] = None,
    rankfile: Annotated[Path | None, Parameter(name=["--rankfile", "-rf"], group=_PLACES)] = None,
    bind_to: Annotated[str | None, Parameter(group=_PLACES)] = None,
    no_profile: Annotated[bool, Parameter(group=_PLACES, show_default=False)] = False,
    env: Annotated[tuple[str, ...], Parameter(name=["--env", "-x"], group=_PROGRAM, show_default=False)] = (),
    wdir: Annotated[Path | None, Parameter(name=["--wdir", "-wdir"], group=_PROGRAM)] = None,
    launcher_args: Annotated[
        tuple[str, ...], Parameter(allow_leading_hyphen=True, group=_PROGRAM, show_default=False)
    ] = (),
    plain: Annotated[bool, Parameter(group=_PROGRAM)] = False,
    site_collectives: Annotated[bool, Parameter(group=_PROGRAM)] = False,
    deterministic: Annotated[bool, Parameter(group=_PROGRAM)] = False,
    place_spawned: Annotated[bool, Parameter(group=_PROGRAM)] = False,
    host_memory: Annotated[bool, Parameter(group=_PROGRAM)] = False,
    output: Output = "text",
) -> int:
    """Run an MPI program on a cluster: wherry run NAME -n 4 -- PROGRAM ARGS.

    The command has the program's output and exit code, and rank 0 its standard input. Ctrl-C, SIGTERM and SIGHUP end
    the job; SIGUSR1, SIGUSR2 and SIGALRM reach its ranks. It ends, too, when the reader of its output ends; not when
    the command is killed (SIGKILL): then wherry logs and wherry job cancel still work. The environment of ranks:
    docs/run.md.
    Several programs make one job (MPMD): wherry run NAME -n 2 -- PROGRAM ARGS : -n 4 OTHER ARGS.

    Parameters
    ----------
    name
        The cluster.
    program
        The program, after `--`.
    args
        Its arguments.
    ranks
        Number of ranks of the first program; without more words they are blocks, as even as possible, over the nodes,
        unless the profile of the program's last run gives a better placement (wherry job profile --program).
    mpi
        openmpi, mpich, or the path of a launcher; default: the MPI that the program is linked against.
    expect
        Expected run time, for instance 2h: balancing weighs the cost of moves against it.
    timeout
        End the job after this time, for instance 10m.
    grace
        How long ranks may continue after a SIGTERM or SIGHUP to the command, which they get as SIGTERM; default: 5s.
    detach
        Do not wait: print the job. `wherry logs` shows its output.
    up
        Make the cluster of this file for the job, and remove it at the end; then no NAME is given.
    map_by
        slot: fill the CPUs of a node, then those of the next; node: one rank for each node by turns; ppr:N:node: N
        ranks for each.
    rank_by
        slot or node: number ranks along each node, or by turns; default as --map-by.
    hosts
        Nodes in the order in which they get ranks, separated by commas; no others get any.
    rankfile
        A file with a line `rank 0=NODE` for each rank.
    bind_to
        none (default), hwthread, core, socket, numa, l1cache, l2cache or l3cache: the object to which the
        launcher binds a rank, of the processors that its node may use.
    no_profile
        Neither keep a profile of this run nor place its ranks by that of an earlier one or by the load of hosts.
    env
        NAME=VALUE, a variable for the ranks beside the variables of the command; may be repeated.
    wdir
        The ranks' working directory; default: that of the command.
    launcher_args
        A word for the MPI's own launcher; may be repeated.
    plain
        Put nothing of Wherry between the program and its MPI library: `wherry job profile` then measures from outside,
        and ranks that wait do so as their MPI does.
    site_collectives
        Have collectives cross a link between sites once; of non-blocking ones small ones. Ranks get the place of each
        rank, also after a move. Sums of floating point may be rounded otherwise.
    deterministic
        Give reductions of floating point the same bits wherever as many ranks are, also after moves: the MPI library
        is set to choose its algorithms without regard to hosts (MPICH's ranks in one virtual machine then talk through
        sockets). With --site-collectives blocking reductions combine the ranks' values one after the other, from rank
        0 on, which has other bits than without.
    place_spawned
        Start the processes of MPI_Comm_spawn on the nodes of the least loaded hosts, or on the nodes or hosts that its
        info key `host` names. Without it they go where the MPI puts them, which is on nodes that have ranks.
    host_memory
        Pass messages of 64 (MPICH: 32) to 256 KiB between ranks whose containers are at one host by the host's memory.
        When a move parts them they use the network, and the memory again when they are together.
    """
    if detach and up is not None:
        raise Refused(Code.USAGE, "--detach and --up exclude each other", "", f"wherry up {up}, then wherry run")
    words = [word for word in (name, program, *args) if word is not None]
    spec = None if up is None else _read_cluster(up)
    if spec is None and not words:
        raise Refused(Code.USAGE, "no cluster is named", "", "wherry run NAME -n 4 -- PROGRAM")
    cluster = words.pop(0) if spec is None else str(spec["name"])
    checked("NAME", "spec.base:ShortText", cluster, "wherry run")
    if not words:
        raise Refused(Code.USAGE, "no program is given", "", f"wherry run {cluster} -n {ranks} -- PROGRAM")
    if ranks < 1:
        what = f"-n {ranks}: a job has at least one rank"
        raise Refused(Code.USAGE, what, "", f"wherry run {cluster} -n 1 -- {words[0]}")
    programs = _programs(words, ranks)
    if wdir:
        remote.refuse("--wdir")
    owner = identity.owner(wdir.absolute() if wdir else None)
    request = {
        "cluster": cluster,
        "argv": words,
        "ranks": sum(one.ranks for one in programs) if programs else ranks,
        "mpi": mpi,
        "env": {**(identity.ELSEWHERE if remote.configured() else identity.environment(owner)), **_variables(env)},
        "input": not detach and has_input(),
        "expected": _seconds("--expect", expect),
        "owner": owner,
        "programs": programs,
        "layout": _layout({"map_by": map_by, "rank_by": rank_by, "bind_to": bind_to}, hosts, rankfile),
        "timeout": _seconds("--timeout", timeout),
        "launcher_args": launcher_args,
        "measured": not no_profile,
        "plain": plain,
        "site_collectives": site_collectives,
        "deterministic": deterministic,
        "place_spawned": place_spawned,
        "host_memory": host_memory,
    }
    patience = GRACE if grace is None else seconds_of("--grace", grace)
    if detach:
        return _run(request, None, output, patience)
    with job_signals() as came, signals_as_interrupt(), _made(up, spec):
        return _run(request, came, output, patience)


def _read_cluster(file: Path) -> dict[str, Any]:
    from wherry.cli.files import read_cluster  # here: the models of files take long to import

    return read_cluster(file)


@contextmanager
def _made(file: Path | None, spec: dict[str, Any] | None) -> Iterator[None]:
    """Makes the cluster of a file, and removes it; without one does nothing."""
    if file is None or spec is None:
        yield
        return
    name = spec["name"]
    with Client() as client:
        if any(cluster["name"] == name for cluster in client.clusters()):
            why, instead = f"--up {file} would remove it at the end", f"wherry run {name} -n 4 -- PROGRAM"
            raise Refused(Code.WRONG_STATE, f"cluster {name} is there already", why, instead)
        try:
            client.wait(client.up(spec, str(file)).id, say_to_terminal)
            yield
        finally:
            with suppress(Refused):  # it was not made, or is gone
                client.wait(client.down(name, end_jobs=True).id, say_to_terminal)


def _seconds(option: str, typed: str | None) -> float | None:
    seconds = None if typed is None else seconds_of(option, typed)
    checked(option, "balance:Remaining", seconds, "wherry run", typed or "")
    return seconds


def _programs(words: list[str], ranks: int) -> tuple[Program, ...]:
    """The programs between colons, as for mpirun; none when there is only one."""
    if ":" not in words:
        return ()
    from wherry.model.job_request import Program

    found = []
    for is_colon, part in groupby(["-n", str(ranks), *words], ":".__eq__):
        match [] if is_colon else list(part):
            case []:
                continue
            case [("-n" | "-np" | "--ranks"), count, program, *args] if re.fullmatch(r"[1-9]\d{0,3}", count):
                found.append(Program(argv=tuple(map(to_text, (program, *args))), ranks=int(count)))
            case other:
                what = f"{' '.join(other)!r} beside a colon is not valid"
                raise Refused(Code.USAGE, what, "each program is -n COUNT PROGRAM ARGS", "wherry run --help")
    return tuple(found)


def _layout(places: dict[str, Any], hosts: str | None, rankfile: Path | None) -> Layout | None:
    """None when nothing was asked for, as the model takes long to import."""
    if rankfile is not None and (hosts or places["map_by"] or places["rank_by"]):
        what = "--rankfile leaves nothing to --hosts, --map-by and --rank-by"
        raise Refused(Code.USAGE, what, "", "wherry run --help")
    for option, kind in (("map_by", "MapBy"), ("rank_by", "RankBy"), ("bind_to", "BindTo")):
        checked(f"--{option.replace('_', '-')}", f"job_request:{kind}", places[option], "wherry run")
    if hosts is not None:
        places["hosts"] = tuple(hosts.split(","))
    if rankfile is not None:
        places["rankfile"] = _read_rankfile(rankfile)
    for name in (*places.get("hosts", ()), *places.get("rankfile", ())):
        checked("the node", "spec.base:ShortText", name, "wherry run")
    said = {key: value for key, value in places.items() if value is not None}
    if not said:
        return None
    from wherry.model.job_request import Layout

    return Layout(**said)


def _read_rankfile(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise Refused(Code.NOT_FOUND, f"{path} cannot be read", error.strerror or str(error), f"ls -l {path}") from None
    nodes: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        match = _RANKFILE.fullmatch(said)
        if not match or int(match[1]) in nodes:
            why = (
                "each rank has one line: rank 0=NODE" if match else "a line is: rank 0=NODE; processors are --bind-to's"
            )
            raise Refused(Code.INVALID_FILE, f"{path}, line {number}: {said!r} is not valid", why, "wherry status")
        nodes[int(match[1])] = match[2]
    if sorted(nodes) != list(range(len(nodes))):
        missing = next(rank for rank in range(len(nodes)) if rank not in nodes)
        raise Refused(Code.INVALID_FILE, f"{path}: rank {missing} has no line", "", f"rank {missing}=NODE")
    return tuple(nodes[rank] for rank in range(len(nodes)))


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not name or not equals and name not in os.environ:
            what = f"--env {word} is not valid" if not name else f"the variable {name} is not set"
            raise Refused(Code.USAGE, what, "", f"--env {name or 'NAME'}=VALUE")
        found[name] = value if equals else os.environ[name]
    return found


def _run(request: dict[str, Any], came: Signals | None, output: Output, grace: float) -> int:
    """Starts the job, and follows it unless it is to be detached: then there is no queue of signals."""
    with existing(f"cluster {request['cluster']!r}") as client:
        job = client.run(**request, progress=say_to_terminal)
        if came is None and not client.interrupted:
            emit(output, "job", job, lambda: print(job.id))
            return 0
        return follow(client, job, output, read_input if request["input"] else None, grace=grace, came=came)
