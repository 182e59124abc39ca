"""`wherry balance`, `wherry job profile`: measure jobs, and show or move the nodes that should be elsewhere."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Literal

from wherry.base.errors import Code, Refused
from wherry.base.units import format_duration, format_size
from wherry.cli.mpi_profile import show as show_mpi_profile
from wherry.cli.names import ClusterName, JobId
from wherry.cli.options import checked
from wherry.cli.output import Output, emit, say, seconds_of, table
from wherry.cli.program import programs
from wherry.client import Client, existing
from wherry.model.balance import BalancePlan, ProposedMove, Verdict
from wherry.model.profile import Profile
from wherry.model.records import Host

_PAIRS = 10
"""Pairs of nodes that a profile lists."""


def balance(
    cluster: ClusterName | None = None,
    /,
    *,
    all: bool = False,
    apply: bool = False,
    auto: Literal["on", "off"] | None = None,
    remaining: str | None = None,
    seconds: str = "3s",
    detach: bool = False,
    output: Output = "text",
) -> None:
    """Measure running jobs and show which nodes should move, with reason and cost; or move them.

    Parameters
    ----------
    cluster
        Only this cluster's nodes.
    all
        The nodes of all clusters; the default without --apply.
    apply
        Move the nodes.
    auto
        Turn automatic balancing by the daemon on or off.
    remaining
        Remaining run time of the jobs if nothing moves, for instance 10m; default: as long as they have run so far.
    seconds
        Length of the measurement, for instance 5s.
    detach
        With --apply: do not wait, print the operation.
    """
    if auto is not None:
        if cluster is not None or all or apply or detach or remaining is not None:
            what = "--auto is for all clusters, and excludes other options"
            raise Refused(
                Code.USAGE, what, "the daemon measures and decides by itself", f"wherry balance --auto {auto}"
            )
        _auto(auto, output)
        return
    if cluster is not None and all or apply and cluster is None and not all:
        raise Refused(Code.USAGE, "name either a cluster or --all", "", "wherry balance CLUSTER --apply")
    checked("CLUSTER", "spec.base:ShortText", cluster, "wherry balance")
    remains = None if remaining is None else seconds_of("--remaining", remaining)
    checked("--remaining", "balance:Remaining", remains, "wherry balance", remaining or "")
    measured = checked("--seconds", "balance:Measured", seconds_of("--seconds", seconds), "wherry balance", seconds)
    with existing(f"cluster {cluster!r}" if cluster else "cluster") as client:
        if not apply:
            plan = client.balance(cluster, measured, remains)
            on = client.auto_balance()
            data = {"plan": plan, "before": plan.before, "after": plan.after, "auto": on}
            emit(output, "balance", data, lambda: _show(plan, "No node was moved.", on))
            return
        operation = client.begin_balance(cluster, measured, remains)
        if detach:
            emit(output, "operation", operation, lambda: print(operation.id))
            return
        result: dict[str, Any] = client.wait(operation.id, say).result or {}
    done = BalancePlan.model_validate(result["plan"])
    emit(output, "balance", result, lambda: _show(done, f"{len(result['moves'])} moved."))


def profile(
    job: JobId | None = None,
    /,
    *,
    seconds: str = "3s",
    program: bool = False,
    forget: bool = False,
    outside: bool = False,
    output: Output = "text",
) -> None:
    """Measure a running job: its ranks' calls of MPI; where these are not counted, computing and waiting of its nodes,
    and the traffic between them.

    ANSWERS are messages over links that a node may have waited for: the first one after it sent a message itself.

    Parameters
    ----------
    job
        The job; with --program the name or hash of a program.
    seconds
        Length of the measurement, for instance 5s.
    program
        List what was measured of earlier runs of programs, by which their next runs are placed; or show one.
    forget
        With --program: forget it.
    outside
        Measure the nodes from outside in any case.
    """
    if program:
        programs(job, forget, output)
        return
    if job is None or forget:
        what = "--forget goes with --program" if forget else "no job is named"
        raise Refused(Code.USAGE, what, "", "wherry job profile JOB, or: wherry job profile --program")
    measured = checked("--seconds", "balance:Measured", seconds_of("--seconds", seconds), "wherry job profile", seconds)
    with existing(f"job {job!r}") as client:
        inside = None if outside else client.mpi_profile(job, measured)
        if inside and inside.ranks:
            emit(output, "mpi-profile", inside, lambda: show_mpi_profile(inside))
            return
        measured_profile, hosts = client.profile(job, measured), client.hosts()
    emit(output, "profile", measured_profile, lambda: _show_profile(measured_profile, hosts))
    for why in dict.fromkeys(inside.unseen.values() if inside else ()):
        say(f"Measured from outside: {why}.")


def _auto(word: str, output: str) -> None:
    with Client() as client:
        on = client.auto_balance(word == "on")
    emit(output, "balance-auto", {"auto": on}, lambda: print(_auto_line(on)))


def _auto_line(on: bool) -> str:
    text = "on: nodes are moved when it pays; see wherry event list" if on else "off"
    return f"Balancing by the daemon is {text}."


def _show(plan: BalancePlan, end: str, auto: bool | None = None) -> None:
    rows = [
        (
            v.cluster,
            v.kind,
            f"{v.before:.0f} s",
            f"{v.after:.0f} s" if v.moves else "-",
            f"{v.cost:.1f} s",
            len(v.moves),
            v.source or "-",
        )
        for v in plan.verdicts
    ]
    table(("CLUSTER", "KIND", "STILL TAKES", "THEN", "MOVES COST", "MOVES", "MEASURED"), rows, "No cluster is up.")
    for verdict in plan.verdicts:
        _show_verdict(verdict)
    if plan.moves:
        print(f"Score: {plan.before:.0f} s before, {plan.after:.0f} s after. {end}")
    else:
        better = any(verdict.step < 1.0 for verdict in plan.verdicts)
        print(
            "No move is proposed." if better else "Score: nothing to gain." if plan.verdicts else "Next: wherry up FILE"
        )
    if auto is not None:
        print(_auto_line(auto))


def _show_verdict(verdict: Verdict) -> None:
    print(f"\n{verdict.cluster}: {verdict.text}.")
    for move in verdict.moves:
        print(f"  {_move(move)}")


def _move(move: ProposedMove) -> str:
    price = f"{format_size(move.bytes)}, downtime {format_duration(move.downtime)}"
    return f"{move.node}: {move.source} -> {move.destination} ({price}): {move.reason}"


def _show_profile(profile: Profile, hosts: list[Host]) -> None:
    site, where = {host.name: host.site for host in hosts}, {load.node: load.host for load in profile.nodes}
    sums = defaultdict[str, list[float]](lambda: [0.0, 0.0, 0.0, 0.0])
    for flow in profile.flows or ():
        far = site.get(where[flow.source]) != site.get(where[flow.target])
        for node in (flow.source, flow.target):
            sums[node][far] += flow.bytes
            sums[node][2] += flow.messages if far else 0.0
            sums[node][3] += flow.turns if far else 0.0
    rows = [
        (
            load.node, load.host, load.ranks, f"{load.cpu:.2f}", f"{load.computing:.0%}", f"{load.waiting:.0%}",
            f"{load.throttled:.0%}", *_sums(sums[load.node], profile.flows is not None),
        )
        for load in profile.nodes
    ]  # fmt: skip
    header = (
        "NODE",
        "HOST",
        "RANKS",
        "CPUS",
        "COMPUTES",
        "WAITS",
        "HELD BACK",
        "WITHIN SITE",
        "OVER LINKS",
        "MESSAGES",
        "ANSWERS",
    )
    jobs = ", ".join(profile.jobs) or "no job"
    print(f"{profile.cluster}: {jobs}, {profile.ran:.0f} s so far, seen for {profile.seconds:.1f} s")
    table(header, rows, "It has no nodes.")
    if profile.uncounted:
        print(f"Messages are not counted: {profile.uncounted}")
    for flow in sorted(profile.flows or (), key=lambda flow: -flow.bytes)[:_PAIRS]:
        figures = f"{flow.messages:.0f} messages/s, {flow.turns:.0f} answers/s, {_rate(flow.bytes)}"
        print(f"  {flow.source} -> {flow.target}: {figures}")


def _sums(sums: list[float], counted: bool) -> tuple[str, str, str, str]:
    return (_rate(sums[0]), _rate(sums[1]), f"{sums[2]:.0f}/s", f"{sums[3]:.0f}/s") if counted else ("-",) * 4


def _rate(size: float) -> str:
    return f"{format_size(size)}/s"
