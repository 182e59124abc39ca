"""`wherry queue`: clusters that wait for room."""

from __future__ import annotations

import time

from cyclopts import App

from wherry.base.errors import Code, Refused
from wherry.cli.output import Output, age, emit, table
from wherry.client import Client, Reader

app = App(name="queue", help="The queue: clusters that wait for room (wherry up FILE --wait).")


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List the clusters that wait, the first one first, and why each waits."""
    with Reader() as reader:
        queue = reader.rows("/v1/queue")

    def room(at: float | None) -> str:
        return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))

    rows = [(q.position, q.cluster, q.nodes, q.priority, q.by, age(q.entered), room(q.starts), q.why) for q in queue]
    header = ("POSITION", "CLUSTER", "NODES", "PRIORITY", "USER", "WAITS", "ROOM AT", "WHY")
    emit(output, "queue", {"queue": queue}, lambda: table(header, rows, "No cluster waits."))


@app.command
def cancel(name: str, /, *, output: Output = "text") -> None:
    """Have a cluster wait no more.

    Parameters
    ----------
    name
        The cluster.
    """
    with Client() as client:
        found = next((one for one in client.queue() if one["cluster"] == name), None)
        if found is None:
            raise Refused(Code.NOT_FOUND, f"no cluster named {name!r} waits", "", "wherry queue list")
        operation = client.cancel(found["operation"])
    emit(output, "operation", operation, lambda: print(f"{name} does not wait any more."))
