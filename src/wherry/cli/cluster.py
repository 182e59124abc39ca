"""`wherry up`, `wherry down`, `wherry status`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wherry.base.errors import Code, LostContact, Refused
from wherry.base.paths import Instance, instance
from wherry.base.units import format_size
from wherry.cli.output import Output, age, emit, say, table
from wherry.client import Client, Reader, Row, daemon_process

_UNDER_WAY = ("starting", "running")
"""States of jobs whose end is not known."""
_TRIES = 5
"""How many daemons `down --all` stops before it gives up."""


def up(file: Path, /, *, dry_run: bool = False, detach: bool = False, output: Output = "text") -> None:
    """Make, change or repair the cluster of FILE.

    The same file again changes nothing. If no fabric is up, the embedded one is made first.

    Parameters
    ----------
    file
        A cluster file (see examples/hello.yaml).
    dry_run
        Print the plan, and change nothing.
    detach
        Do not wait: print the operation.
    """
    from wherry.cli.files import read_cluster  # here: the models of files take as long as all of `status`

    data = read_cluster(file)
    with Client() as client:
        if dry_run:
            plan = client.plan(data, str(file))
            emit(output, "plan", plan, lambda: print(plan["text"]))
            return
        operation = client.up(data, str(file))
        if detach:
            emit(output, "operation", operation, lambda: print(operation.id))
            return
        result: dict[str, Any] = client.wait(operation.id, say).result or {}
        emit(output, "cluster", result, lambda: _print_up(result))


def down(name: str | None = None, /, *, all: bool = False, output: Output = "text") -> None:
    """End the jobs of a cluster and remove it, or remove everything of this instance.

    Parameters
    ----------
    name
        The cluster.
    all
        All clusters, the fabric, the daemon, the database and all output. Needs no daemon.
    """
    if all == bool(name):
        what = "name a cluster, or say --all" if not name else "a name and --all exclude each other"
        raise Refused(Code.USAGE, what, "", "wherry down NAME, or: wherry down --all")
    if all:
        _down_all(output)
        return
    with Client() as client:
        result: dict[str, Any] = client.wait(client.down(str(name)).id, say).result or {}
        emit(output, "down", result, lambda: print(f"{name} is removed ({len(result['nodes'])} nodes)."))


def status(name: str | None = None, /, *, output: Output = "text") -> None:
    """Show all clusters and tiles, or one cluster with its nodes and jobs.

    Parameters
    ----------
    name
        The cluster.
    """
    with Reader() as reader:
        nodes, jobs = reader.nodes(name), reader.jobs(name)
        clusters = [c for c in reader.clusters() if name in (None, c["name"])]
        tiles = _tiles(reader) if name is None else None
        data = {"clusters": clusters, "nodes": nodes, "jobs": jobs} | ({} if name else {"tiles": tiles})

    def overview() -> None:
        running = [job for job in jobs if job.state in _UNDER_WAY]
        rows = [
            (
                c["name"],
                c["state"],
                sum(node.cluster == c["name"] for node in nodes),
                c["subnet"],
                sum(job.cluster == c["name"] for job in running),
                age(c["created"]),
                c["reason"],
            )
            for c in clusters
        ]
        header = ("CLUSTER", "STATE", "NODES", "NETWORK", "JOBS", "AGE", "WHY")
        table(header, rows, "No cluster is up. Next: wherry up FILE")
        if name is None:
            if tiles:
                print(_tiles_line(tiles))
            return
        print()
        node_rows = [(n.name, n.kind, n.state, n.host, n.address, f"{n.cpus:g}", format_size(n.memory)) for n in nodes]
        table(("NODE", "KIND", "STATE", "HOST", "ADDRESS", "CPUS", "MEMORY"), node_rows, "It has no nodes.")
        print()
        job_rows = [(j.id, j.state, j.ranks, j.mpi, age(j.created), " ".join(j.argv)[:60]) for j in jobs]
        table(("JOB", "STATE", "RANKS", "MPI", "AGE", "PROGRAM"), job_rows, "No job ran on it yet.")

    emit(output, "status", data, overview)


def _tiles(reader: Reader) -> Row | None:
    """The tiles; None when there are none, or when they do not answer, which is printed."""
    try:
        return reader.tiles()
    except Refused as error:
        if error.code != Code.NOT_FOUND:
            raise
    except LostContact as error:
        say(str(error))
    return None


def _tiles_line(tiles: dict[str, Any]) -> str:
    count, running = len(tiles["tiles"]), sum(p["state"] == "running" for p in tiles["processes"])
    where = f" on {', '.join(tiles['hosts'])}" if tiles["hosts"] else ""
    return f"\n{count} tiles are up{where}; {running} processes run there (wherry tile ps)."


def _print_up(result: dict[str, Any]) -> None:
    cluster, nodes = result["cluster"], result["nodes"]
    print(f"{cluster['name']} is up: {len(nodes)} nodes in {cluster['subnet']}.")
    rows = [(node["name"], node["kind"], node["host"], node["address"]) for node in nodes]
    table(("NODE", "KIND", "HOST", "ADDRESS"), rows, "no nodes")


def _stop_and_purge(place: Instance) -> tuple[int | None, dict[str, list[str]]]:
    """Stops the daemon and removes the instance; its process id, and what was removed. Tried several times: a waiting
    client may just have started the next daemon."""
    daemon_process.forbid_resuming(place)
    tries, pid = _TRIES, daemon_process.stop(place)
    while True:
        tries -= 1
        try:
            return pid, daemon_process.sweep()
        except Refused as error:
            if error.code != Code.WRONG_STATE or not tries:
                raise
        pid = daemon_process.stop(place) or pid


def _down_all(output: str) -> None:
    place = instance()
    pid, removed = _stop_and_purge(place)
    removed = ({"daemon": [str(pid)]} if pid else {}) | removed

    def text() -> None:
        for kind, names in removed.items():
            if names:
                shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
                print(f"removed {kind}: {shown}")
        if not any(removed.values()):
            print(f"There was nothing of instance {place.name}.")

    emit(output, "sweep", {"instance": place.name, "removed": removed}, text)
