"""`wherry move`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from wherry.base.interrupts import signals_as_interrupt
from wherry.base.units import format_duration, format_size
from wherry.cli.names import HostName, NodeName
from wherry.cli.options import checked
from wherry.cli.output import Output, emit, live_line
from wherry.client import Row, existing

if TYPE_CHECKING:
    from wherry.model.records import Move


def move(
    node: NodeName,
    /,
    *,
    to: HostName,
    dry_run: bool = False,
    max_rounds: Annotated[int | None, Parameter(show_default=False)] = None,
    bandwidth: str | None = None,
    mode: Literal["pre-copy", "auto-converge", "post-copy", "hybrid"] = "pre-copy",
    parallel: int = 0,
    zstd: Annotated[bool, Parameter(negative=())] = False,
    max_downtime: str | None = None,
    output: Output = "text",
) -> None:
    """Move a node to another host while its job runs. Ctrl-C, SIGTERM or closing the terminal takes the move back.

    Parameters
    ----------
    node
        The node, e.g. hello-2.
    to
        The host.
    dry_run
        Predict the cost of a pre-copy move (with --bandwidth), and move nothing.
    max_rounds
        Most pre-copy rounds; default: 8, and four times as many with auto-converge.
    bandwidth
        Highest rate of sending, for instance 500Mbit/s; default: 90 % of the bandwidth of the links on the path.
    mode
        For virtual machines. auto-converge throttles the node until the rounds converge. post-copy resumes it at the
        destination before all its memory is there: until it is, the loss of either host is the loss of the node.
        hybrid switches to post-copy only when the node dirties memory nearly as fast as it is sent.
    parallel
        For virtual machines: number of parallel connections; not with post-copy or hybrid.
    zstd
        For virtual machines: compress; needs --parallel and libvirt 9.4.
    max_downtime
        For virtual machines: freeze once the remaining memory takes no longer to send, for instance 100ms.
    """
    checked("NODE", "spec.base:ShortText", node, "wherry move")
    checked("--to", "spec.base:ShortText", to, "wherry move")
    checked("--max-rounds", "migration_parameters:Rounds", max_rounds, "wherry move")
    checked("--bandwidth", "spec.fabric:Bandwidth", bandwidth, "wherry move")
    checked("--parallel", "migration_parameters:Connections", parallel or None, "wherry move")
    checked("--max-downtime", "migration_parameters:Downtime", max_downtime, "wherry move")
    parameters: dict[str, object] = {"mode": mode, "connections": parallel, "zstd": zstd, "downtime": max_downtime}
    with existing(f"node {node!r}") as client:
        if dry_run:
            cost = client.predict(node, to, bandwidth)
            text = (
                f"{node} to {to}: about {format_size(cost.bytes)} in {format_duration(cost.seconds)}, "
                f"{cost.rounds} rounds, downtime about {format_duration(cost.downtime)} ({cost.basis}). "
                "Nothing was changed."
            )
            emit(output, "prediction", cost, lambda: print(text))
            return
        with signals_as_interrupt(), live_line() as show:
            operation = client.begin_move(node, to, max_rounds, bandwidth=bandwidth, way=parameters)
            record = client.moved(client.wait(operation.id, show))
        emit(output, "move", record, lambda: print(summary(record)))


def summary(move: Move | Row) -> str:
    """The result of a move, and the command that undoes it."""
    downtime = format_duration(move.downtime) if move.downtime is not None else "not measured"
    took = f" in {format_duration(move.total)}" if move.total is not None else ""
    rounds = f"{len(move.rounds)} round{'' if len(move.rounds) == 1 else 's'}"
    views = (("the engine", move.downtime_criu), ("a peer", move.downtime_peer), ("the node", move.downtime_program))
    seen = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in views if seconds is not None)
    warning = f"But: {move.error['what']}: {move.error['why']}\n" if move.error else ""
    return (
        f"{move.node} moved from {move.source} to {move.destination}{took}, "
        f"downtime {downtime}, {format_size(move.bytes)} sent, {rounds}.\n"
        f"Downtime as seen by: {seen or 'nobody else'}.\n{warning}"
        f"Undo: wherry move {move.node} --to {move.source}"
    )
