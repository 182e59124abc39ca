"""`wherry ledger`: the prediction of each move at its start, and the result."""

from __future__ import annotations

from typing import Any

from cyclopts import App

from wherry.base.units import format_duration
from wherry.cli.move import slowed_down
from wherry.cli.output import Output, age, emit, table
from wherry.client import Reader, Row

app = App(name="ledger", help="The ledger of moves: prediction and result of each.")
_EMPTY = {"entries": [], "total": {"number": 0}, "downtime": {"number": 0}, "gain": {"number": 0}}


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List the finished moves, oldest first, and the spread of the forecasts' errors."""
    with Reader() as reader:
        found = reader.get("/v1/moves/ledger") if reader.up else Row(_EMPTY)
    emit(output, "ledger", found, lambda: _print(found))


@app.command
def show(move: str, /, *, output: Output = "text") -> None:
    """Show a move: its prediction and its result.

    Parameters
    ----------
    move
        The move, as in the list.
    """
    with Reader() as reader:
        found = reader.get(f"/v1/moves/{move}", f"move {move!r}")
    emit(output, "move", found, lambda: table(("MOVE", found.id), _rows(found), ""))


def _print(ledger: Row) -> None:
    header = ("MOVE", "NODE", "AGE", "MODE", "TOTAL", "FORETOLD", "BOUNDS", "DOWNTIME", "FORETOLD", "BOUNDS", "GAIN")
    rows = [
        (
            entry["move"], entry["node"], age(entry["created"]), entry["mode"] or "-", *_figure(entry["total"]),
            *_figure(entry["downtime"]), _gain(entry),
        )
        for entry in ledger.entries
    ]  # fmt: skip
    table(header, rows, "No move with a forecast has finished.")
    for what in ("total", "downtime", "gain"):
        spread = Row(ledger[what])
        if spread.number:
            bounded = "" if spread.within is None else f", {spread.within:.0%} within their bounds"
            print(
                f"{what}: {spread.number} forecasts; the result was {spread.median:.2f} of the prediction (median), "
                f"nine of ten within {spread.error:.0%} of it{bounded}"
            )


def _figure(figure: dict[str, Any]) -> tuple[str, str, str]:
    return format_duration(figure["came"]), format_duration(figure["foretold"]), _bounds(figure["between"])


def _bounds(between: list[float] | None) -> str:
    return "-" if between is None else f"{format_duration(between[0])} to {format_duration(between[1])}"


def _gain(entry: dict[str, Any]) -> str:
    if (gain := entry["gain"]) is None:
        return "not measured" if entry["unmeasured"] else "-"
    return f"{gain['came']:.1f} s of {gain['foretold']:.1f} s"


def _rows(move: Row) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [
        ("node", move.node),
        ("from", move.source),
        ("to", move.destination),
        ("phase", move.phase),
        ("total", _seconds(move.total)),
        ("downtime", _seconds(move.downtime)),
        ("bytes", move.bytes),
        ("rounds", len(move.rounds)),
    ]
    if slow := slowed_down(move):
        rows.append(("CPU time", slow))
    if move.predicted:
        told = Row(move.predicted)
        rows += [
            ("foretold mode", told.mode or "-"),
            ("foretold total", f"{format_duration(told.seconds)} ({_bounds(told.seconds_between)})"),
            ("foretold downtime", f"{format_duration(told.downtime)} ({_bounds(told.downtime_between)})"),
            ("foretold bytes", told.bytes),
            ("foretold rounds", told.rounds),
            *([("foretold CPU time", f"{told.share:.0%} at least")] if told.share else []),
            ("basis", told.basis),
        ]
    if gain := move.gain:
        rows.append(("foretold gain", f"{gain['before'] - gain['after']:.1f} s of {gain['before']:.1f} s"))
        if gain["step"] is not None:
            rows.append(("foretold time of a step", f"{gain['step']:.2f} of that before"))
            why = gain["unmeasured"] or "its moves were not all made, or the daemon ended"
            came = f"not measured: {why}" if gain["measured"] is None else f"{gain['measured']:.2f} of that before"
            rows.append(("measured time of a step", came))
    return rows + [(f"error {key}", value) for key, value in (move.error or {}).items()]


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_duration(value)
