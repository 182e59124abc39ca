"""A move and its job in time: the move's phases as a strip, the job's steps, and the CPU that its ranks had.

Invariant: the three parts share one time axis, and whatever is drawn was measured; the time in which the node was
frozen is shaded through all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wherry.base.units import format_duration

_RUNNING, _OTHER = ("#c9dcec", "#7fabd0", "#4f86b5"), "#cfcfcf"
_STANDING = ("#f6c9a4", "#ee9f5f", "#d9742a", "#a84f12", "#6e3208")
_STANDS = ("freeze", "transfer", "restore", "commit", "thaw")
"""Phases in which the node is frozen."""
_LAST = "done"
_TEXTS = {_LAST: "clean up", "turn": "wait for links"}
_ROOM = 0.035
"""Share of the axis that the name of a phase needs."""
_CURVES = ("#d9742a", "#1f5a8f", "#2c7d46")


@dataclass(frozen=True)
class Timeline:
    """The data of the drawing; all times are seconds on one clock."""

    began: float
    """When the move began."""
    phases: Mapping[str, float]
    """Seconds of each phase, in the order in which they ran."""
    stood: tuple[float, float]
    """When the node was frozen, from and to."""
    steps: Sequence[float]
    """When each step of the job ended."""
    step_text: str = "steps ended"
    time_text: str = "seconds"
    cpu: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """Label -> time and CPU seconds until then, which never fall."""

    def limits(self) -> tuple[float, float]:
        """The part of the time that is shown: the move, and a little before and after it."""
        margin = max(0.15, 0.7 * sum(self.phases.values()))
        return self.began - margin, self.began + sum(self.phases.values()) + margin

    def strips(self) -> list[tuple[str, float, float]]:
        """Each phase with its begin and its seconds."""
        strips, at = [], self.began
        for name, seconds in self.phases.items():
            strips.append((name, at, seconds))
            at += seconds
        return strips

    def as_figure(self) -> Any:
        """Draws it into a new matplotlib figure."""
        import matplotlib

        matplotlib.use("agg")
        from matplotlib.figure import Figure

        heights = [0.5, 1.5, *([1.1] if self.cpu else [])]
        figure = Figure(figsize=(9, 1.1 + sum(heights)), layout="constrained")
        panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        legend = self._draw_phases(panels[0])
        figure.legend(handles=legend, fontsize=8, frameon=False, loc="outside upper center", ncols=4)
        self._draw_steps(panels[1])
        if self.cpu:
            self._draw_cpu(panels[2])
        for axes in panels:
            axes.axvspan(*self.stood, color="#d9742a", alpha=0.12, linewidth=0)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_xlim(*self.limits())
        panels[-1].set_xlabel(self.time_text)
        figure.align_ylabels(panels)
        return figure

    def _draw_phases(self, axes: Any) -> list[Any]:
        """Returns the patches of the legend, which has every phase, however short."""
        from matplotlib.patches import Patch

        before, behind, legend = iter(_RUNNING * 2), iter(_STANDING * 2), []
        low, high = self.limits()
        for name, begin, seconds in self.strips():
            colour = next(behind) if name in _STANDS else _OTHER if name == _LAST else next(before)
            axes.broken_barh([(begin, seconds)], (0, 1), color=colour, linewidth=0)
            text = _TEXTS.get(name, name)
            legend.append(Patch(color=colour, label=f"{text} {format_duration(seconds)}"))
            if seconds > (high - low) * (_ROOM + 0.007 * len(text)):
                axes.annotate(text, (begin + seconds / 2, 0.5), ha="center", va="center", fontsize=8)
        axes.set_yticks([])
        axes.set_ylim(0, 1)
        axes.set_ylabel("move")
        axes.spines["left"].set_visible(False)
        return legend

    def _draw_steps(self, axes: Any) -> None:
        low, high = self.limits()
        times = [min([low, *self.steps]), *self.steps, max([high, *self.steps])]
        counts = [0, *range(1, len(self.steps) + 1), len(self.steps)]
        shown = [number for time, number in zip(self.steps, range(1, len(self.steps) + 1), strict=True) if time <= high]
        first = sum(time < low for time in self.steps)
        axes.step(times, counts, where="post", color="#1f5a8f", linewidth=1.4)
        axes.plot(self.steps, range(1, len(self.steps) + 1), "o", color="#1f5a8f", markersize=3)
        axes.set_ylim(first - 0.5, max([first + 1, *shown]) + 1)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set_ylabel(self.step_text)
        axes.grid(axis="y", alpha=0.3)
        middle = sum(self.stood) / 2
        text = f"the node is frozen\n{format_duration(self.stood[1] - self.stood[0])}"
        axes.annotate(text, (middle, 0.97), xycoords=("data", "axes fraction"), ha="center", va="top", fontsize=8)

    def _draw_cpu(self, axes: Any) -> None:
        for (label, points), colour in zip(self.cpu.items(), _CURVES, strict=False):
            times, seconds = self.within(points)
            axes.plot(times, seconds, color=colour, linewidth=1.4, label=label)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("CPU seconds")
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize=8, frameon=False, loc="lower right")

    def within(self, points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
        """The points that are shown, counted from the first of them."""
        low, high = self.limits()
        shown = [(time, seconds) for time, seconds in points if low <= time <= high]
        return [time for time, _ in shown], [seconds - shown[0][1] for _, seconds in shown]
