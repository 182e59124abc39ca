"""`wherry move`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from wherry.base.errors import Refused
from wherry.base.interrupts import interrupts_held, signals_as_interrupt
from wherry.base.units import format_duration, format_size
from wherry.cli.check import hindrance
from wherry.cli.names import HostName, NodeName
from wherry.cli.options import checked
from wherry.cli.output import Output, emit, live_line, say
from wherry.client import Row, existing

if TYPE_CHECKING:
    from wherry.model.records import Move, Prediction


def move(
    node: NodeName,
    /,
    *,
    to: HostName,
    dry_run: bool = False,
    max_rounds: Annotated[int | None, Parameter(show_default=False)] = None,
    bandwidth: str | None = None,
    mode: Literal["auto", "stop", "pre-copy", "auto-converge", "post-copy", "hybrid"] = "auto",
    parallel: int = 0,
    compress: Literal["auto", "on", "off"] = "auto",
    zstd: Annotated[bool, Parameter(negative=())] = False,
    max_downtime: str | None = None,
    deadline: str | None = None,
    output: Output = "text",
) -> None:
    """Move a node to another host while its job runs. Ctrl-C, SIGTERM or closing the terminal rolls the move back.

    Parameters
    ----------
    node
        The node, e.g. hello-2.
    to
        The host.
    dry_run
        Predict the cost of the move, and move nothing. The memory writes of a container are sampled for a second.
    max_rounds
        Most pre-copy rounds; default: 16, and twice as many with auto-converge.
    bandwidth
        Highest rate of sending, for instance 500Mbit/s; default: 90 % of the bandwidth of the links on
        the path, 94 % while their queues are empty.
    mode
        stop freezes the node and sends all. pre-copy sends its memory while it runs, in rounds. auto does whichever
        costs a container's job less, and ends the rounds when the next would gain nothing. auto-converge throttles the
        node until the rounds converge, a container to a tenth of its CPU time at least. post-copy resumes the node at
        the destination before all its memory is there: until it is, the loss of either host, or of the network between
        them, is the loss of the node; hybrid switches to post-copy only when the node dirties memory nearly as fast as
        it is sent.
    parallel
        Number of parallel connections for the memory; for containers at most 16, default: as many as pay; for virtual
        machines not with post-copy or hybrid.
    compress
        For containers: whether their memory is compressed; auto compresses below 2 Gbit/s.
    zstd
        For virtual machines: compress; needs --parallel and libvirt 9.4.
    max_downtime
        For virtual machines: freeze once the remaining memory takes no longer to send, for instance 100ms.
    deadline
        For containers with post-copy or hybrid: give the node up when no memory has come for so long; default: 60s.
    """
    checked("NODE", "spec.base:ShortText", node, "wherry move")
    checked("--to", "spec.base:ShortText", to, "wherry move")
    checked("--max-rounds", "migration_parameters:Rounds", max_rounds, "wherry move")
    checked("--bandwidth", "spec.fabric:Bandwidth", bandwidth, "wherry move")
    checked("--parallel", "migration_parameters:Connections", parallel or None, "wherry move")
    checked("--max-downtime", "migration_parameters:Downtime", max_downtime, "wherry move")
    checked("--deadline", "migration_parameters:Deadline", deadline, "wherry move")
    parameters: dict[str, object] = {"mode": mode, "connections": parallel, "compress": compress}
    parameters |= {"zstd": zstd, "downtime": max_downtime, "deadline": deadline}
    with existing(f"node {node!r}") as client:
        if dry_run:
            found = client.check_node(node).hindrances
            try:
                cost = client.predict(node, to, bandwidth, max_rounds, parameters)
            except Refused:
                for one in found if output == "text" else ():
                    say(hindrance(one))
                raise
            lines = [f"{node} to {to}: {forecast(cost)} Nothing was changed.", *map(hindrance, found)]
            emit(output, "prediction", {**dict(cost), "hindrances": found}, lambda: print("\n".join(lines)))
            return
        with signals_as_interrupt():
            with live_line() as show:
                try:
                    operation = client.begin_move(node, to, max_rounds, bandwidth=bandwidth, parameters=parameters)
                except KeyboardInterrupt:
                    with suppress(OSError):  # the terminal is gone
                        say(f"the move of {node} was cancelled as it began; how it ended: wherry op list")
                    raise
                operation = client.wait(operation.id, show)
            with suppress(KeyboardInterrupt), interrupts_held():  # too late: the node was moved, and that is printed
                record = Row((operation.result or {})["move"])
                emit(output, "move", record, lambda: print(summary(record)))


def forecast(cost: Prediction) -> str:
    """A forecast in words."""
    rounds = f"{cost.rounds} round{'' if cost.rounds == 1 else 's'}"
    total, stands = _figure(cost.seconds, cost.seconds_between), _figure(cost.downtime, cost.downtime_between)
    how = f"{cost.mode}, " if cost.mode else ""
    how += f"slowed down to {cost.share:.0%} of its CPU time, " if (cost.share or 1.0) < 1 else ""
    later = f", {format_size(cost.later)} within {format_duration(cost.later_seconds)} after it" if cost.later else ""
    return f"{how}about {format_size(cost.bytes)} in {total}, {rounds}, downtime about {stands}{later} ({cost.basis})."


def _figure(seconds: float, bounds: tuple[float, float] | None) -> str:
    within = f" ({format_duration(bounds[0])} to {format_duration(bounds[1])})" if bounds else ""
    return f"{format_duration(seconds)}{within}"


def slowed_down(move: Move | Row) -> str:
    """How much the node was slowed down for its move, and for how long; empty when it was not."""
    slow = [found for round in move.rounds if ((found := dict(round)).get("share") or 1.0) < 1]
    if not slow:
        return ""
    least, seconds = min(round["share"] for round in slow), sum(round["seconds"] for round in slow)
    return f"slowed down to {least:.0%} of its CPU time for {format_duration(seconds)}"


def summary(move: Move | Row) -> str:
    """The result of a move, and the command that undoes it."""
    downtime = format_duration(move.downtime) if move.downtime is not None else "not measured"
    took = f" in {format_duration(move.total)}" if move.total is not None else ""
    rounds = f"{len(move.rounds)} round{'' if len(move.rounds) == 1 else 's'}"
    slow = f", {slowed}" if (slowed := slowed_down(move)) else ""
    views = (("the engine", move.downtime_engine), ("a peer", move.downtime_peer), ("the node", move.downtime_program))
    seen = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in views if seconds is not None)
    how = "".join(f", {word}" for word in _words(move))
    got = Row(dict(move.fetched)) if move.fetched else None
    later = (
        f"After the thaw came {format_size(got.demanded)} on demand and {format_size(got.background)} in the "
        f"background; all was there after {format_duration(got.seconds)}.\n"
        if got
        else ""
    )
    warning = f"But: {move.error['what']}: {move.error['why']}\n" if move.error else ""
    return (
        f"{move.node} moved from {move.source} to {move.destination}{took}, "
        f"downtime {downtime}, {format_size(move.bytes)} sent{how}, {rounds}{slow}.\n"
        f"Downtime as seen by: {seen or 'nobody else'}.\n{later}{warning}"
        f"Undo: wherry move {move.node} --to {move.source}"
    )


def _words(move: Move | Row) -> list[str]:
    """How its memory went, where that was not as usual."""
    if not move.carriage:
        return []
    carriage = dict(move.carriage)
    several = f"over {carriage['connections']} connections" if carriage["connections"] > 1 else ""
    return [*(word for word in ("compressed", "encrypted") if carriage[word]), *([several] if several else [])]
