"""`wherry status`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any, Protocol

from cyclopts import Parameter

from wherry.base.components import parts
from wherry.base.errors import Code, LostContact, Refused
from wherry.base.units import format_size
from wherry.cli.lease import until
from wherry.cli.names import ClusterName
from wherry.cli.output import Output, age, emit, is_terminal, say, table
from wherry.client import Reader, Row

_UNDER_WAY = ("starting", "running")
"""States of jobs whose end is not known."""
_WAIT, _RETRY = 5.0, 1.0
"""Seconds that `--watch` waits for an event before it reads again, as not every change is one; and for a daemon."""
_CLEAR = "\033[H\033[J"


class Shown(Protocol):
    """The part of a component; a module with these functions is one."""

    def read(self, reader: Reader) -> Row:
        """Its objects that are up, for `-o json` under the component's name. NOT_FOUND when there are none."""
        ...

    def line(self, data: Row) -> str:
        """The same as text."""
        ...


def status(
    name: ClusterName | None = None,
    /,
    *,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"])] = False,
    output: Output = "text",
) -> None:
    """Show all clusters, or one with its nodes and jobs.

    Parameters
    ----------
    name
        The cluster.
    watch
        Keep it up to date until Ctrl-C: in place on a terminal, else again after each change.
    """
    if watch:
        try:
            _watch(name, output)
        except KeyboardInterrupt:
            return
    with Reader() as reader:
        data = _read(reader, name)
    emit(output, "status", data, lambda: _show(data, name))


def _watch(name: str | None, output: str) -> None:
    """Shows the status until it is interrupted."""
    in_place, last = output == "text" and is_terminal(sys.stdout), None
    for data in _states(name):
        if in_place:
            print(_CLEAR, end="")
        elif data == last:
            continue
        elif last is not None and output == "text" and not isinstance(data, str):
            print()
        last = data
        if isinstance(data, str):
            say(data)
        else:
            emit(output, "status", data, lambda data=data: _show(data, name))  # type: ignore[misc]


def _states(name: str | None) -> Iterator[dict[str, Any] | str]:
    """The status after each event, and every few seconds; while no daemon answers, why."""
    while True:
        try:
            with Reader() as reader:
                seen = _last_event(reader)
                yield _read(reader, name)
                while reader.up:
                    seen = _last_event(reader, seen, _WAIT)
                    yield _read(reader, name)
        except LostContact as error:
            if error.code != Code.UNREACHABLE:
                raise
            yield str(error)
        time.sleep(_RETRY)


def _last_event(reader: Reader, after: int = 0, wait: float = 0.0) -> int:
    """Number of the last event, once there is one after number `after`, or after `wait` seconds."""
    events = reader.events(after, wait)
    while events:
        after = events[-1].id
        events = reader.events(after)
    return after


def _read(reader: Reader, name: str | None) -> dict[str, Any]:
    nodes, jobs = reader.nodes(name), reader.jobs(name)
    clusters = [c for c in reader.clusters() if name in (None, c["name"])]
    found = {"clusters": clusters, "nodes": nodes, "jobs": jobs}
    return found if name else found | {part: _shown(reader, shown) for part, shown in _shown_by_components()}


def _show(data: dict[str, Any], name: str | None) -> None:
    clusters, nodes, jobs = data["clusters"], data["nodes"], data["jobs"]
    running = [job for job in jobs if job.state in _UNDER_WAY]
    rows = [
        (
            c["name"],
            c["state"],
            sum(node.cluster == c["name"] for node in nodes),
            c["subnet"],
            sum(job.cluster == c["name"] for job in running),
            age(c["created"]),
            until(c["lease"]),
            _why(c),
        )
        for c in clusters
    ]
    header = ("CLUSTER", "STATE", "NODES", "NETWORK", "JOBS", "AGE", "LEASE", "WHY")
    table(header, rows, "No cluster is up. Next: wherry up FILE")
    if name is None:
        for part, shown in _shown_by_components():
            if data[part]:
                print(f"\n{shown.line(data[part])}")
        return
    print()
    node_rows = [(n.name, n.kind, n.state, n.host, n.address, f"{n.cpus:g}", format_size(n.memory)) for n in nodes]
    table(("NODE", "KIND", "STATE", "HOST", "ADDRESS", "CPUS", "MEMORY"), node_rows, "It has no nodes.")
    print()
    job_rows = [(j.id, j.state, j.ranks, j.mpi, age(j.created), " ".join(j.argv)[:60]) for j in jobs]
    table(("JOB", "STATE", "RANKS", "MPI", "AGE", "PROGRAM"), job_rows, "No job ran on it yet.")


def _why(cluster: dict[str, Any]) -> str:
    """The reason of its state; else that it is removed soon."""
    warned = cluster["lease"] and cluster["lease"]["warned"]
    soon = f"it is removed soon: wherry lease extend {cluster['name']} --by 4h" if warned else ""
    return str(cluster["reason"] or soon)


def _shown_by_components() -> list[tuple[str, Shown]]:
    return parts("status")


def _shown(reader: Reader, part: Shown) -> Row | None:
    """The objects of a component; None when there are none, or when they do not answer, which is printed."""
    try:
        return part.read(reader)
    except Refused as error:
        if error.code != Code.NOT_FOUND:
            raise
    except LostContact as error:
        say(str(error))
    return None
