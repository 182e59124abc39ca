"""Prints tables and progress: by rich on a terminal, as plain lines into a pipe or file."""

from __future__ import annotations

import sys
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


def print_table(table: Table) -> None:
    """Prints a table, fitted to the terminal's width; in a file or a pipe no cell is truncated or wrapped."""
    grid = Grid(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for index, (name, kind) in enumerate(zip(table.head, table.kinds, strict=True)):
        grid.add_column(Text(name), justify="right" if index and kind == "n" else "left")
    for row in table.rows:
        grid.add_row(*(Text(str(cell)) for cell in row))
    console = Console(highlight=False)
    console.print()
    if console.is_terminal:
        console.print(grid)
        return
    console.width = Measurement.get(console, console.options.update(max_width=10_000), grid).maximum
    console.width = max(console.width, len(table.title))
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

    def __call__(self, done: int, total: int, text: str, left: float | None = None) -> None:
        remaining = f"about {format_duration(left)} left" if left else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=text, left=remaining)
        else:
            said = f"run {done} of {total}, {text}{', ' if remaining else ''}{remaining}"
            print(said, file=sys.stderr, flush=True)
