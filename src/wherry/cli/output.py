"""The output of commands.

Invariant: results go to standard output, everything else to standard error. With `-o json` standard output is exactly
one JSON document with a `schema`, also for an error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

from cyclopts import Parameter

from wherry.base.errors import Code, Refused, WherryError
from wherry.base.text import printable
from wherry.base.units import parse_duration

if TYPE_CHECKING:
    from pydantic import BaseModel

_BOLD, _RED, _GREEN, _YELLOW = 1, 31, 32, 33
_STATES = {
    **dict.fromkeys(("running", "up", "ok", "done"), _GREEN),
    **dict.fromkeys(("making", "planned", "starting", "moving", "removing", "partly", "drained", "limited"), _YELLOW),
    **dict.fromkeys(("lost", "failed", "down", "dead", "missing"), _RED),
}
"""Colors of states by their last word; ended and cancelled objects have none."""
Output = Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"], help="Text, or one JSON document.")]


MOST_LISTED = 1000
Limit = Annotated[int, Parameter(name=["--limit"], help="List at most so many; 0: all.")]


def most_of(limit: int) -> int | None:
    """The number of rows to list; None: all. USAGE for less than none."""
    if limit < 0:
        raise Refused(Code.USAGE, f"--limit {limit} is less than none", "", "--limit 0 lists all")
    return limit or None


def emit_list(output: str, schema: str, data: dict[str, Any], more: bool, text: Callable[[], None]) -> None:
    """Prints a list, and whether there are `more` rows: as a key of the document, or as a line on how to see them."""
    emit(output, schema, {**data, "more": more}, text)
    if more and output != "json":
        say("There are more. All: --limit 0")


def emit(output: str, schema: str, data: dict[str, Any] | BaseModel, text: Callable[[], None]) -> None:
    """Prints a result: `data` as a JSON document of schema `wherry/SCHEMA/1`, or by `text`."""
    if output == "json":
        print(json.dumps({"schema": f"wherry/{schema}/1", **dict(data)}, indent=2, default=_dumped))
    else:
        text()
    sys.stdout.flush()


def _dumped(record: BaseModel) -> dict[str, Any]:
    return record.model_dump(mode="json")


def say(text: str) -> None:
    """Prints a line of progress."""
    print(text, file=sys.stderr, flush=True)


def is_interactive() -> bool:
    """True when a question can be asked and answered on the terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def agrees(question: str) -> bool:
    """Asks on the terminal; True when the answer is yes."""
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def table(header: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Prints aligned columns, or the line `empty` when there are no rows."""
    if not rows:
        print(empty)
        return
    cells = [list(header), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    print(painted(_joined(cells[0], widths), _BOLD))
    states = cells[0].index("STATE") if "STATE" in cells[0] else None
    for line in cells[1:]:
        column = 1 if line[0] == "state" and len(line) == 2 else states
        print(_joined(line, widths, column))


def _joined(line: Sequence[str], widths: Sequence[int], state: int | None = None) -> str:
    """The cells of a line in columns; that of column `state` in its colour."""
    padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
    if state is not None and (color := _STATES.get(line[state].split(" ")[-1])):
        padded[state] = painted(line[state], color) + padded[state][len(line[state]) :]
    return "  ".join(padded).rstrip()


def seconds_of(option: str, text: str) -> float:
    """An option's value, a duration, in seconds. USAGE for anything else."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise Refused(Code.USAGE, f"{option} {text} is not a duration", str(error), f"{option} 5s") from None


def age(since: float | None) -> str:
    """How long ago: `5s`, `12m`, `3h`, `2d`."""
    if since is None:
        return "-"
    seconds = max(0.0, time.time() - since)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def report(error: WherryError, as_json: bool) -> int:
    """Prints an error: the fault, the reason, and the command to type next. Returns the exit code."""
    if as_json:
        print(json.dumps({"schema": "wherry/error/1", "error": error.to_dict()}, indent=2))
    lines = [f"{painted(f'error {error.code}', _RED, sys.stderr)}: {error.what}"]
    lines += [f"  {word}: {text}" for word, text in (("why", error.why), ("next", error.next)) if text]
    with suppress(OSError):  # the terminal was closed
        say("\n".join(lines))
    return error.code.exit_code


def is_terminal(stream: TextIO) -> bool:
    """True for a terminal that can do more than print lines."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def painted(text: str, attribute: int, stream: TextIO | None = None) -> str:
    """The text with a color or another attribute, on a terminal and unless NO_COLOR is set."""
    if not is_terminal(stream or sys.stdout) or "NO_COLOR" in os.environ:
        return text
    return f"\033[{attribute}m{text}\033[0m"


@contextmanager
def live_line() -> Iterator[Callable[[str], None]]:
    """Progress of which only the last text matters: each replaces the one before on a terminal, and the last is gone
    at the end; elsewhere each step (`NODE: round 2: …`) has one line."""
    if not is_terminal(sys.stderr):
        told = set[str]()

        def say_once(text: str) -> None:
            step = ":".join(text.split(":")[:2])
            if step not in told:
                told.add(step)
                say(text)

        yield say_once
        return

    def show(text: str) -> None:
        width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        print(f"\r\033[K{text[: width - 1]}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        with suppress(OSError):  # the terminal was closed
            print("\r\033[K", end="", file=sys.stderr, flush=True)
