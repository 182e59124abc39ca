"""`wherry node`."""

from __future__ import annotations

from typing import Any

from cyclopts import App

from wherry.base.cpu_list import format_cpu_list
from wherry.base.errors import Code, Refused
from wherry.base.units import format_duration, format_size
from wherry.cli.cluster import agreed
from wherry.cli.names import ClusterName, NodeName
from wherry.cli.options import checked
from wherry.cli.output import MOST_LISTED, Limit, Output, age, emit, emit_list, most_of, say, table
from wherry.client import Reader, Row, existing

app = App(name="node", help="Nodes: the machines of clusters.")


@app.command(name="list")
def list_(cluster: ClusterName | None = None, /, *, limit: Limit = MOST_LISTED, output: Output = "text") -> None:
    """List the nodes.

    Parameters
    ----------
    cluster
        Only this cluster's.
    """
    with Reader() as reader:
        nodes, more = reader.some("/v1/nodes", most_of(limit), cluster=cluster)
    rows = [
        (n.name, n.kind, n.cluster, n.state, n.host, n.address, f"{n.cpus:g}", format_size(n.memory)) for n in nodes
    ]
    header = ("NODE", "KIND", "CLUSTER", "STATE", "HOST", "ADDRESS", "CPUS", "MEMORY")
    emit_list(output, "nodes", {"nodes": nodes}, more, lambda: table(header, rows, "There are no nodes."))


@app.command
def show(node: NodeName, /, *, output: Output = "text") -> None:
    """Show a node, its resource usage, and its moves.

    Parameters
    ----------
    node
        The node.
    """
    with Reader() as reader:
        data = reader.get(f"/v1/nodes/{node}", f"node {node!r}")
    record, usage = Row(data["node"]), data["usage"]
    rows: list[tuple[str, object]] = [
        ("kind", record.kind),
        ("cluster", record.cluster),
        ("state", record.state),
        ("host", record.host),
        ("address", f"{record.address} ({record.mac})"),
        ("limits", f"{record.cpus:g} CPUs, {format_size(record.memory)}"),
    ]
    if pin := record.get("pin"):
        memory = "" if pin["memory"] is None else f", memory of NUMA node {pin['memory']}"
        rows.append(("pinned to", f"CPUs {format_cpu_list(pin['cpus'])} of {record.host}{memory}"))
    if usage:
        rows.append(("memory", format_size(usage["memory"])))
        for name, files in (("files", "files"), ("disk for /tmp", "disk")):
            if usage[files] is not None:
                rows.append((name, f"{format_size(usage[files])} of {format_size(usage[f'{files}_limit'])}"))
        rows.append(("CPU time", f"{format_duration(usage['cpu'])}, throttled {format_duration(usage['throttled'])}"))
        rows.append(("processes", usage["processes"]))
        if usage["sent"] is not None:
            text = f"{format_size(usage['sent'])} sent, {format_size(usage['received'])} received at {record.host}"
            rows.append(("network", text))
    rows += [("move", _line(Row(move))) for move in data["moves"]]
    emit(output, "node", data, lambda: table(("NODE", node), rows, ""))


@app.command
def restart(*nodes: NodeName, yes: bool = False, output: Output = "text") -> None:
    """End nodes of one cluster, and start each anew at its host.

    Its programs and its own files are gone (/tmp, /run, /dev/shm; the disk of a virtual machine is its image's again).
    Its name, address and host stay. When its host is gone, `wherry up` starts it at another one.

    Parameters
    ----------
    nodes
        The nodes.
    yes
        End the jobs that run there without asking.
    """
    for name in nodes:
        checked("NODE", "spec.base:ShortText", name, "wherry node restart")
    if not nodes:
        raise Refused(Code.USAGE, "name the nodes", "", "wherry node restart NODE")
    with existing(f"node {nodes[0]!r}") as client:
        cluster = client.node(nodes[0])["node"]["cluster"]
        jobs = [job for job in client.jobs(cluster) if not job.nodes or set(job.nodes) & set(nodes)]
        remedy = f"wherry node restart {' '.join(nodes)} --yes"
        ending = agreed(", ".join(nodes), jobs, yes, remedy, "restart")
        result: dict[str, Any] = client.wait(client.restart(nodes, ending).id, say).result or {}
    emit(output, "restart", result, lambda: print(f"{', '.join(nodes)}: started anew."))


def _line(move: Row) -> str:
    downtime = f", downtime {format_duration(move.downtime)}" if move.downtime is not None else ""
    return f"{age(move.created)} ago, {move.source} to {move.destination}: {move.phase}{downtime}"
