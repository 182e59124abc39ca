"""The output of commands.

Invariant: results go to standard output, everything else to standard error. With `-o json` standard output is exactly
one JSON document with a `schema`, also for an error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from wherry.base.errors import Code, Refused, WherryError
from wherry.base.text import printable
from wherry.base.units import parse_duration

if TYPE_CHECKING:
    from pydantic import BaseModel

Output = Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"], help="Text, or one JSON document.")]


def emit(output: str, schema: str, data: dict[str, Any] | BaseModel, text: Callable[[], None]) -> None:
    """Prints a result: `data` as a JSON document of schema `wherry/SCHEMA/1`, or what `text` prints."""
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


def table(header: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Prints aligned columns, or the line `empty` when there are no rows."""
    if not rows:
        print(empty)
        return
    cells = [list(header), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    for number, line in enumerate(cells):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        print(_bold(text) if number == 0 else text)


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
    """Prints an error: what happened, why, what to type next. Returns the exit code."""
    if as_json:
        print(json.dumps({"schema": "wherry/error/1", "error": error.to_dict()}, indent=2))
    lines = [f"error {error.code}: {error.what}"]
    lines += [f"  {word}: {text}" for word, text in (("why", error.why), ("next", error.next)) if text]
    say("\n".join(lines))
    return error.code.exit_code


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
