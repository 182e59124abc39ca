"""`wherry move`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Literal

from cyclopts import Parameter

from wherry.base.units import format_duration, format_size
from wherry.cli.output import Output, emit, say
from wherry.client import Client
from wherry.model.objects import Move


def move(
    node: str,
    /,
    *,
    to: str,
    dry_run: bool = False,
    max_rounds: Annotated[int | None, Parameter(show_default=False)] = None,
    bandwidth: str | None = None,
    mode: Literal["pre-copy", "auto-converge", "post-copy", "hybrid"] = "pre-copy",
    parallel: int = 0,
    zstd: Annotated[bool, Parameter(negative=())] = False,
    max_downtime: str | None = None,
    output: Output = "text",
) -> None:
    """Move a node to another host while its job runs. Ctrl-C, SIGTERM and a terminal that is closed take it back.

    Parameters
    ----------
    node
        The node, e.g. hello-2.
    to
        The host.
    dry_run
        Print what a plain move would cost, with --bandwidth, and move nothing.
    max_rounds
        Rounds of memory sent while the node runs, at most; 8, and four times as many with auto-converge.
    bandwidth
        The most that the move sends, for instance 500Mbit/s; else 90 % of what the links on its way have.
    mode
        For virtual machines. auto-converge slows the node down until the rounds gain; post-copy lets it run at the host
        before all its memory is there: until it is, the loss of either host is the loss of the node; hybrid does so
        only when the node writes nearly as fast as is sent.
    parallel
        For virtual machines: so many connections at the same time; not with post-copy or hybrid.
    zstd
        For virtual machines: send compressed; needs --parallel and libvirt 9.4.
    max_downtime
        For virtual machines: freeze as soon as the rest takes no longer than this, for instance 100ms.
    """
    given: dict[str, object] = {"mode": mode, "connections": parallel, "zstd": zstd, "downtime": max_downtime}
    with Client() as client:
        if dry_run:
            cost = client.predict(node, to, bandwidth)
            text = (
                f"{node} to {to}: about {format_size(cost.bytes)} in {format_duration(cost.seconds)}, "
                f"{cost.rounds} rounds, downtime about {format_duration(cost.downtime)} ({cost.basis}). "
                "Nothing was changed."
            )
            emit(output, "prediction", cost, lambda: print(text))
            return
        with _ended_like_an_interrupt():
            begun = client.begin_move(node, to, max_rounds, bandwidth=bandwidth, way=given)
            found = client.moved(client.wait(begun.id, say))
        emit(output, "move", found, lambda: print(summary(found)))


@contextmanager
def _ended_like_an_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP do meanwhile what Ctrl-C does, once: else they would end the command and not the move.

    A signal that is ignored (nohup) stays ignored."""
    struck: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        struck.append(number)
        if len(struck) == 1:
            raise KeyboardInterrupt

    mine = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in mine:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def summary(move: Move) -> str:
    """The result of a move and how to undo it."""
    downtime = format_duration(move.downtime) if move.downtime is not None else "not measured"
    total = format_duration(move.total or 0.0)
    rounds = f"{len(move.rounds)} round{'' if len(move.rounds) == 1 else 's'}"
    views = (("the engine", move.downtime_criu), ("a peer", move.downtime_peer), ("the node", move.downtime_program))
    seen = ", ".join(f"{who} {format_duration(seconds)}" for who, seconds in views if seconds is not None)
    silent = f"But: {move.error['what']}: {move.error['why']}\n" if move.error else ""
    return (
        f"{move.node} moved from {move.source} to {move.destination} in {total}, "
        f"downtime {downtime}, {format_size(move.bytes)} sent, {rounds}.\n"
        f"Downtime as seen by: {seen or 'nobody else'}.\n{silent}"
        f"Undo: wherry move {move.node} --to {move.source}"
    )
