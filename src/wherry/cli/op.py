"""`wherry op`, `wherry event`: operations and events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from wherry.cli.output import MOST_LISTED, Limit, Output, age, emit, emit_list, most_of, say, table
from wherry.client import Client, Reader, Row, existing

if TYPE_CHECKING:
    from wherry.model.records import Event

app = App(name="op", help="Operations: long commands, running and ended.")
event = App(name="event", help="Events: a log of all changes, with their reasons.")


@app.command(name="list")
def list_(*, running: bool = False, limit: Limit = MOST_LISTED, output: Output = "text") -> None:
    """List the newest operations, oldest first; the newest thousand ended ones are kept.

    Parameters
    ----------
    running
        Only running ones.
    """
    with Reader() as reader:
        operations, more = reader.some("/v1/operations", most_of(limit), running=running, newest=True)
    rows = [(o.id, o.kind, o.target, o.state, age(o.created), _text(o)) for o in operations]
    header = ("OPERATION", "KIND", "TARGET", "STATE", "AGE", "PROGRESS")
    data = {"operations": operations}
    emit_list(output, "operations", data, more, lambda: table(header, rows, "There are none."))


@app.command
def show(operation: str, /, *, output: Output = "text") -> None:
    """Show an operation, and its steps with times and users: its begin, each phase, and its end.

    Parameters
    ----------
    operation
        The operation.
    """
    with Reader() as reader:
        found = reader.get(f"/v1/operations/{operation}", f"operation {operation!r}", trail=True)
    _print(Row(found["operation"]), output, found["trail"])


@app.command
def wait(operation: str, /, *, output: Output = "text") -> None:
    """Wait for an operation, and fail if it fails. Ctrl-C cancels it.

    Parameters
    ----------
    operation
        The operation.
    """
    with existing(f"operation {operation!r}") as client:
        _print(client.wait(operation, say), output)


@app.command
def cancel(operation: str, /, *, output: Output = "text") -> None:
    """Cancel an operation.

    Parameters
    ----------
    operation
        The operation.
    """
    with existing(f"operation {operation!r}") as client:
        item = client.cancel(operation)
    emit(output, "operation", item, lambda: print(f"{item.id} is being cancelled."))


@event.command(name="list")
def list_events(
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"])] = False,
    limit: Limit = MOST_LISTED,
    output: Output = "text",
) -> None:
    """List the newest events, oldest first; the newest ten thousand are kept.

    Parameters
    ----------
    follow
        Show new events as they come, until Ctrl-C.
    """
    with Reader() as reader:
        events, more = reader.some("/v1/events", most_of(limit), newest=True)
        emit_list(output, "events", {"events": events}, more, lambda: _print_events(events))
        if follow:
            with Client(start=reader.up) as client:
                for item in client.follow_events(events[-1].id if events else 0):
                    emit(output, "events", {"events": [item]}, lambda item=item: _print_events([item]))  # type: ignore[misc]


def _print(operation: Row, output: str, trail: Sequence[dict[str, Any]] | None = None) -> None:
    shown = [(key, value) for key, value in operation.items() if key not in ("result", "error")]
    rows = [(key, "-" if value is None else value) for key, value in shown]
    rows += [(f"error {key}", value) for key, value in (operation.error or {}).items()]
    data = dict(operation) if trail is None else {**operation, "trail": trail}

    def text() -> None:
        table(("OPERATION", operation.id), rows, "")
        steps = [(_when(step["time"]), step["by"] or "-", step["kind"], step["text"]) for step in trail or ()]
        if steps:
            print()
            table(("TIME", "BY", "STEP", "TEXT"), steps, "")

    emit(output, "operation", data, text)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f"{seconds % 1:.3f}"[1:]


def _text(operation: Row) -> str:
    return ((operation.error or {}).get("what") or operation.progress)[:60]


def _print_events(events: Sequence[Row | Event]) -> None:
    for event in events:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
        who = f" (by {event.by})" if event.by else ""
        print(f"{when}  {event.kind:16} {event.target}: {event.text}{who}")
