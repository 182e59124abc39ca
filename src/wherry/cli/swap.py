"""`wherry swap`."""

from __future__ import annotations

from wherry.base.interrupts import signals_as_interrupt
from wherry.cli.move import summary
from wherry.cli.names import NodeName
from wherry.cli.options import checked
from wherry.cli.output import Output, emit, live_line
from wherry.client import existing


def swap(node: NodeName, other: NodeName, /, *, output: Output = "text") -> None:
    """Swap two nodes while their jobs run, where every host is full and neither could be moved alone.

    Nodes of one cluster are frozen once, together. A host may carry both for that time, beyond its declared memory, if
    so much memory is really free on it. If one node cannot be moved, the move of the other is rolled back.

    Parameters
    ----------
    node
        The one node.
    other
        The other.
    """
    for name in (node, other):
        checked("NODE", "spec.base:ShortText", name, "wherry swap")
    with existing(f"node {node!r}") as client, signals_as_interrupt(), live_line() as show:
        moves = client.swap(node, other, show)
    lines = [summary(move).rsplit("\n", 1)[0] for move in moves]
    undo = f"Undo: wherry swap {node} {other}"
    emit(output, "swap", {"moves": moves}, lambda: print("\n".join([*lines, undo])))
