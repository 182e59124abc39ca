"""`wherry node`."""

from __future__ import annotations

from cyclopts import App

from wherry.base.units import format_duration, format_size
from wherry.cli.names import ClusterName, NodeName
from wherry.cli.output import Output, age, emit, table
from wherry.client import Reader, Row

app = App(name="node", help="Nodes: the machines of clusters.")


@app.command(name="list")
def list_(cluster: ClusterName | None = None, /, *, output: Output = "text") -> None:
    """List the nodes.

    Parameters
    ----------
    cluster
        Only this cluster's.
    """
    with Reader() as reader:
        nodes = reader.nodes(cluster)
    rows = [
        (n.name, n.kind, n.cluster, n.state, n.host, n.address, f"{n.cpus:g}", format_size(n.memory)) for n in nodes
    ]
    header = ("NODE", "KIND", "CLUSTER", "STATE", "HOST", "ADDRESS", "CPUS", "MEMORY")
    emit(output, "nodes", {"nodes": nodes}, lambda: table(header, rows, "There are no nodes."))


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
    if usage:
        rows.append(("memory", format_size(usage["memory"])))
        rows.append(("CPU time", f"{format_duration(usage['cpu'])}, throttled {format_duration(usage['throttled'])}"))
        rows.append(("processes", usage["processes"]))
        if usage["sent"] is not None:
            text = f"{format_size(usage['sent'])} sent, {format_size(usage['received'])} received at {record.host}"
            rows.append(("network", text))
    rows += [("move", _line(Row(move))) for move in data["moves"]]
    emit(output, "node", data, lambda: table(("NODE", node), rows, ""))


def _line(move: Row) -> str:
    downtime = f", downtime {format_duration(move.downtime)}" if move.downtime is not None else ""
    return f"{age(move.created)} ago, {move.source} to {move.destination}: {move.phase}{downtime}"
