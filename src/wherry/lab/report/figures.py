"""Figures in the form of the papers: bar charts with all samples, and curves over message size with intervals.

Invariant: a figure shows every sample behind its medians as a dot and states how many values are out of its range;
published values that were not measured here are black and labelled.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wherry.lab.report.statistics import Estimate, median

COLOURS = ("#1f5a8f", "#c25b12", "#2c7d46", "#8a3d8f", "#7a6a1f", "#a02c2c")
MARKERS = ("o", "s", "^", "D", "v", "P")
"""One for each colour, for readers and printers without colour."""
_BLACK = "#111"
_MAX_HORIZONTAL_NAMES = 6
"""Up to this many group names are printed horizontally."""
Samples = Mapping[str, Sequence[float]]
Curves = Mapping[str, Mapping[float, Sequence[float]]]
"""Label -> x -> samples."""


@dataclass(frozen=True)
class Drawing:
    """A figure as a function that draws it into given axes."""

    draw: Callable[[Any], None]
    """Draws into matplotlib's axes."""
    height: float = 3.6
    """Inches, at a width of 7."""

    def as_figure(self) -> Any:
        """Draws it into a new matplotlib figure."""
        import matplotlib

        matplotlib.use("agg")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, self.height), layout="constrained")
        self.draw(figure.subplots())
        return figure


@dataclass(frozen=True)
class Published:
    """A published value in a figure: a black mark with its text. `x` is a group's name, or a message size."""

    x: str | float
    y: float
    text: str


def bars(groups: Mapping[str, Samples], label: str, published: Sequence[Published] = ()) -> Drawing:
    """Grouped bar chart: group -> bar -> samples. The bar's height is the median, printed above it."""
    names = list(dict.fromkeys(name for samples in groups.values() for name in samples))
    width = 0.8 / len(names) if len(names) > 1 else 0.5

    def draw(axes: Any) -> None:
        for row, samples in enumerate(groups.values()):
            for column, name in enumerate(names):
                if data := samples.get(name):
                    at = row + (column - (len(names) - 1) / 2) * width
                    colour = COLOURS[(column if len(names) > 1 else row) % len(COLOURS)]
                    _bar(axes, at, width * 0.9, data, colour)
        for mark in published:
            at = list(groups).index(str(mark.x))
            axes.plot([at - 0.45, at + 0.45], [mark.y] * 2, color=_BLACK, linewidth=1.1, linestyle="--")
            axes.annotate(mark.text, (at + 0.27, mark.y), (0, 2), textcoords="offset points", fontsize=7, color=_BLACK)
        _label_groups(axes, list(groups))
        axes.set_xlim(-0.6, len(groups) - (0.2 if published else 0.4))  # room for the text beside a bar
        axes.set_ylabel(label)
        axes.set_ylim(0, (1.3 if len(names) > 1 else 1.12) * axes.get_ylim()[1])  # room for legend and numbers
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        if len(names) > 1:
            _add_bar_legend(axes, names)

    return Drawing(draw, 3.4)


def _label_groups(axes: Any, names: Sequence[str]) -> None:
    """Labels the groups below the bars: horizontally wrapped if there are few, else rotated."""
    if len(names) > _MAX_HORIZONTAL_NAMES:
        texts = [", ".join(name.splitlines()) for name in names]
        axes.set_xticks(range(len(names)), texts, rotation=30, ha="right", rotation_mode="anchor", fontsize=8)
        return
    width = 66 // max(1, len(names))  # characters
    wrapped = [[line for part in name.splitlines() for line in textwrap.wrap(part, width)] for name in names]
    axes.set_xticks(range(len(names)), ["\n".join(lines) for lines in wrapped])


def _bar(axes: Any, at: float, width: float, data: Sequence[float], colour: str) -> None:
    value, top = median(data).value, max(data)
    axes.bar(at, value, width, color=colour, alpha=0.45, edgecolor=colour)
    axes.plot([at] * len(data), data, "o", color=colour, markersize=3)
    axes.annotate(f"{value:.3g}", (at, top), (0, 4), textcoords="offset points", ha="center", fontsize=7.5)


def _add_bar_legend(axes: Any, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=COLOURS[i % len(COLOURS)], alpha=0.45, label=name) for i, name in enumerate(names)]
    axes.legend(handles=handles, fontsize="small", frameon=False, loc="upper left", ncols=min(3, len(names)))


def curves(
    series: Curves,
    ylabel: str,
    *,
    log_y: bool = False,
    scale: Callable[[float, float], float] = lambda x, y: y,
    published: Sequence[Published] = (),
) -> Drawing:
    """Medians over message size with their intervals; every sample is a faint dot. `scale` maps (x, y) to the y
    drawn."""

    def draw(axes: Any) -> None:
        for number, (label, points) in enumerate(series.items()):
            scaled = {x: [scale(x, y) for y in data] for x, data in points.items() if data}
            if scaled:
                _curve(axes, label, {x: median(data) for x, data in scaled.items()}, number)
                for x, data in scaled.items():
                    axes.plot(
                        [x] * len(data), data, ".", color=COLOURS[number % len(COLOURS)], alpha=0.25, markersize=3
                    )
        for mark in published:
            axes.plot([mark.x], [mark.y], "*", color=_BLACK, markersize=9)
            axes.annotate(
                mark.text, (mark.x, mark.y), (-6, 0), textcoords="offset points", ha="right", va="center", fontsize=7
            )
        _size_axis(axes, log_y)
        axes.set_ylabel(ylabel)

    return Drawing(draw, 3.9)


def estimates(series: Mapping[str, Mapping[float, Estimate]], ylabel: str, top: float | None = None) -> Drawing:
    """Estimates over message size in percent; with `top`, the y axis is limited to -top .. top."""

    def draw(axes: Any) -> None:
        for number, (label, points) in enumerate(series.items()):
            if points:  # a logarithmic axis rejects an empty line
                _curve(axes, label, points, number)
        _size_axis(axes, log_y=False)
        axes.set_ylabel(ylabel)
        if top is not None:
            axes.set_ylim(bottom=max(-top, min(0, axes.get_ylim()[0])), top=top)
            axes.axhline(0, color="#888", linewidth=0.8)
            below = sum(one.value < -top for points in series.values() for one in points.values())
            if below:
                text = f"{below} values are below {-top:g} and not shown: see the tables"
                axes.annotate(text, (0.5, 0.02), xycoords="axes fraction", ha="center", fontsize=7)

    return Drawing(draw, 3.5)


def scatter(
    groups: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    lines: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Drawing:
    """Points (x, y), one colour for each group; `lines` are the expected values."""

    def draw(axes: Any) -> None:
        for number, (label, points) in enumerate(groups.items()):
            marker, colour = MARKERS[number % len(MARKERS)], COLOURS[number % len(COLOURS)]
            axes.plot(*zip(*points, strict=True), marker, color=colour, label=label, markersize=4, alpha=0.8)
        for style, (label, points) in zip(("--", ":", "-."), (lines or {}).items(), strict=False):
            axes.plot(*zip(*points, strict=True), style, color=_BLACK, label=label, linewidth=1)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        axes.axhline(0, color="#888", linewidth=0.8)
        axes.grid(alpha=0.3)
        _legend(axes, "best")

    return Drawing(draw, 3.5)


def _curve(axes: Any, label: str, points: Mapping[float, Estimate], number: int) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    xs = sorted(points)
    mark_every = max(1, len(xs) // 10)
    values = [points[x].value for x in xs]
    axes.plot(
        xs, values, "-", color=colour, label=label, linewidth=1.4, marker=marker, markersize=4, markevery=mark_every
    )
    low, high = [points[x].low for x in xs], [points[x].high for x in xs]
    axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)


def _size_axis(axes: Any, log_y: bool) -> None:
    axes.set_xscale("log", base=2)
    if log_y:
        axes.set_yscale("log")
    elif axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("message size")
    axes.xaxis.set_major_formatter(lambda x, _: size_text(x) if x >= 1 else "")
    axes.grid(alpha=0.3)
    _legend(axes, "best")


def _legend(axes: Any, where: str) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small", frameon=False, loc=where)


def size_text(size: float) -> str:
    """`65536` -> `64 KiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size /= 1024
    return f"{size:g} GiB"
