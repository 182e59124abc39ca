"""The papers' forms of figures: bars with their samples, and curves over message size with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wherry.lab.stats import Estimate, median

COLOURS = ("#1f5a8f", "#c25b12", "#2c7d46", "#8a3d8f", "#7a6a1f", "#a02c2c")
Samples = Mapping[str, Sequence[float]]
Curves = Mapping[str, Mapping[float, Sequence[float]]]
"""Label -> x -> samples."""


def bars(groups: Mapping[str, Samples], label: str) -> Any:
    """Bars side by side: group -> bar -> samples. The bar is the median; each sample is a dot."""
    figure, axes = _axes(7, 3.2)
    names = list(dict.fromkeys(name for samples in groups.values() for name in samples))
    width = 0.8 / max(1, len(names))
    for column, name in enumerate(names):
        for row, samples in enumerate(groups.values()):
            data = samples.get(name)
            if data:
                at = row + (column - (len(names) - 1) / 2) * width
                colour = COLOURS[column % len(COLOURS)]
                axes.bar(at, median(data).value, width * 0.9, color=colour, alpha=0.5, label="" if row else name)
                axes.plot([at] * len(data), data, "o", color=colour, markersize=3)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    if len(names) > 1:
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])  # room for the legend
        _legend(axes)
    return figure


def curves(
    series: Curves, ylabel: str, *, log_y: bool = False, scale: Callable[[float, float], float] = lambda x, y: y
) -> Any:
    """Medians over message size with their intervals; every sample is a faint dot. `scale` turns (x, y) into y."""
    figure, axes = _axes(7, 3.8)
    for number, (label, points) in enumerate(series.items()):
        scaled = {x: [scale(x, y) for y in data] for x, data in points.items() if data}
        if not scaled:
            continue
        estimates = {x: median(data) for x, data in scaled.items()}
        _curve(axes, label, estimates, COLOURS[number % len(COLOURS)])
        for x, data in scaled.items():
            axes.plot([x] * len(data), data, ".", color=COLOURS[number % len(COLOURS)], alpha=0.25, markersize=3)
    _size_axis(axes, log_y)
    axes.set_ylabel(ylabel)
    return figure


def estimates(series: Mapping[str, Mapping[float, Estimate]], ylabel: str, top: float | None = None) -> Any:
    """Estimates over message size, as a degradation in percent."""
    figure, axes = _axes(7, 3.4)
    for number, (label, points) in enumerate(series.items()):
        _curve(axes, label, points, COLOURS[number % len(COLOURS)])
    _size_axis(axes, log_y=False)
    axes.set_ylabel(ylabel)
    if top is not None:
        axes.set_ylim(top=top)
        axes.axhline(0, color="#888", linewidth=0.8)
    return figure


def scatter(groups: Mapping[str, Sequence[tuple[float, float]]], xlabel: str, ylabel: str) -> Any:
    """Points of (x, y), a colour for each group."""
    figure, axes = _axes(7, 3.4)
    for number, (label, points) in enumerate(groups.items()):
        axes.plot(*zip(*points, strict=True), "o", color=COLOURS[number % len(COLOURS)], label=label, markersize=4)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.axhline(0, color="#888", linewidth=0.8)
    _legend(axes)
    return figure


def _curve(axes: Any, label: str, points: Mapping[float, Estimate], colour: str) -> None:
    xs = sorted(points)
    axes.plot(xs, [points[x].value for x in xs], "-", color=colour, label=label, linewidth=1.4)
    low, high = [points[x].low for x in xs], [points[x].high for x in xs]
    axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)


def _size_axis(axes: Any, log_y: bool) -> None:
    axes.set_xscale("log", base=2)
    if log_y:
        axes.set_yscale("log")
    axes.set_xlabel("message size")
    axes.xaxis.set_major_formatter(lambda x, _: size_text(x))
    axes.grid(alpha=0.3)
    _legend(axes)


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small", frameon=False, loc="upper left")


def _axes(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def size_text(size: float) -> str:
    """`65536` -> `64 KiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size /= 1024
    return f"{size:g} GiB"
