"""Prints tables and progress: by rich on a terminal, as plain lines into a pipe or file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table as Grid
from rich.text import Text

from wherry.base.units import format_duration
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate

_BAR = 30
"""Characters of the longest bar."""
_MARGINS = 8
"""Columns beside the cells of a table of two."""
_ALL = 10_000
"""Columns that no table needs."""


def print_table(table: Table, chart: Sequence[Estimate] = ()) -> None:
    """Prints a table, fitted to the terminal's width; in a file or a pipe no cell is truncated or wrapped.

    `chart` has a bar for each row: beside the table, or below it where the terminal is too narrow."""
    console = Console(highlight=False)
    bars = bars_of(chart)
    beside = Table(table.title, (*table.head, ""), [(*row, bar) for row, bar in zip(table.rows, bars, strict=False)])
    console.print()
    if not console.is_terminal:
        _print_whole(console, _grid(beside if chart else table), table.title)
    elif chart and _width(console, _grid(beside)) <= console.width:
        console.print(_grid(beside))
    else:
        console.print(_grid(table))
        if chart:
            names = [row[0] for row in table.rows]
            shorter = bars_of(chart, min(_BAR, console.width - max(map(len, names)) - _MARGINS))
            console.print(_grid(Table("", (table.head[0], ""), list(zip(names, shorter, strict=True)))))


def bars_of(estimates: Sequence[Estimate], width: int = _BAR) -> list[str]:
    """A bar for each estimate, all to one scale from 0: `=` to the median `|`, and its interval between `[` and `]`."""
    top = max((estimate.high for estimate in estimates), default=0.0)
    return [_bar(estimate, (width - 1) / top) if top > 0 else "" for estimate in estimates]


def _bar(estimate: Estimate, scale: float) -> str:
    low, middle, high = (round(value * scale) for value in (estimate.low, estimate.value, estimate.high))
    cells = ["="] * middle + ["-"] * (high - middle + 1)
    cells[low], cells[high] = "[", "]"
    cells[middle] = "|"
    return "".join(cells)


def _grid(table: Table) -> Grid:
    grid = Grid(title=table.title or None, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for index, (name, kind) in enumerate(zip(table.head, table.kinds, strict=True)):
        grid.add_column(Text(name), justify="right" if index and kind == "n" else "left")
    for row in table.rows:
        grid.add_row(*(Text(str(cell)) for cell in row))
    return grid


def _width(console: Console, grid: Grid) -> int:
    return Measurement.get(console, console.options.update(max_width=_ALL), grid).maximum


def _print_whole(console: Console, grid: Grid, title: str) -> None:
    console.width = max(_width(console, grid), len(title))
    with console.capture() as text:
        console.print(grid)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


class Progress:
    """A progress bar with the remaining time on a terminal, else one line for each run. Called after each run."""

    def __init__(self, first: str) -> None:
        self._bar: Bar | None = None
        if sys.stderr.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}  {task.description}"))
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(first, total=None, left="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """A step that is no run."""
        if self._bar is None:
            print(text, file=sys.stderr, flush=True)
        self.note(text)

    def note(self, text: str) -> None:
        """Shows the step of the run under way, on a terminal only."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)

    def __call__(self, done: int, total: int, text: str, left: float | None = None) -> None:
        remaining = f"about {format_duration(left)} left" if left else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=text, left=remaining)
        else:
            said = f"run {done} of {total}, {text}{', ' if remaining else ''}{remaining}"
            print(said, file=sys.stderr, flush=True)
