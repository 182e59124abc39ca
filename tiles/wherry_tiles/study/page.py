"""Report of the study `manycore`: goals, the three questions, comparison with the paper."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median
from wherry.lab.study import analysis
from wherry.lab.study.experiment import Page
from wherry.lab.study.levels import Combination
from wherry.lab.study.results import Results
from wherry_tiles.spec import MODES
from wherry_tiles.study import mesh, published
from wherry_tiles.study.levels import LARGEST, SLAVES, TCP, Axes, combination_of

_PARTS = ("freeze", "copy", "commit", "resume")
_SUMS = ("first", "all", "observed", "seen")
_US = 1e6
_EVENTS = ("branches", "data_misses", "instruction_misses")


def page(combinations: Sequence[Combination], results: Results, stack: str) -> Page:
    """Tables and figures of the results so far; `stack` is that of the smaller pthreads, as text."""
    contents, axes = Page(), Axes.of(combinations)
    contents.tables += [
        _goals(results, axes),
        _threads(results, axes, stack),
        *_split(results, axes),
        _grid(results, axes),
        _scheduling(results, axes),
        _parallel(results, axes, combinations),
        _messages(results),
        mesh.table(results),
        published.table(results, axes),
    ]
    most = axes.pages[-1]
    downtimes = {t: {how: _scaled(results, _move(how, t, most), "first") for how in MODES} for t in axes.threads}
    contents.figures.append(
        (f"Downtime of one move until the first thread runs, {most} pages, over threads.", _bars(downtimes))
    )
    parallel_downtimes = {
        n: {how: _scaled(results, axes.parallel(how, n, axes.pair_threads[0]), "first_mean") for how in MODES}
        for n in axes.pairs
    }
    contents.figures.append(
        ("Mean downtime of moves at the same time, over pairs of tiles.", _bars(parallel_downtimes))
    )
    contents.remarks += [
        "Downtime is from the moment before the source's cores are asked to stop until a thread runs at the "
        "destination: the first one, or the last of the ready threads. `observed` is from the request to the first "
        "thread, preparation included: the paper's observer measured until a signal of the process at its destination "
        "had come, less the time of such a signal. That was its main thread's; here any thread ends the time, so with "
        "more than one thread `observed` is a lower bound of the paper's. `seen` is until the answer reaches its "
        "caller, after the last thread. The emulated hosts have one clock, so the time between them is measured, not "
        "halved.",
        f"The machine has {len(os.sched_getaffinity(0))} CPUs for this process. The floor is a copy of 2 MiB between "
        "two parts of a shared memory file, both just used, in the same minute as each move; beside it one of as many "
        "bytes as the move has copied.",
        "The process that moves is never at rest: its threads, the first included, write random words of its working "
        "set a few nanoseconds apart. The pages that it wrote after the last round of `precopy` are in the KiB that "
        "were copied while it was frozen; they are few where it got no CPU in between, as on a busy machine. A goal "
        "is reached when the whole interval of the ratio is within it.",
        "Moves at the same time are begun again until two of the processes were frozen at once, and the last ones "
        "count: that favours longer downtimes, the more the oftener they were begun.",
        "Threads are created and joined on as many slave cores as there are CPUs: with more, Linux would be "
        "measured. Of the three builds of the tile the first two differ only in the memory of the User Area, shared or "
        "their own. The third has none: a thread's record lies in the kernel's table, the record of a core behind it, "
        "and nothing is on a page of its own; its process cannot move. `separated : mixed` is the cost or gain of "
        "keeping the process's data apart.",
        "The mesh is declared: a message between two tiles takes so much longer for each hop, which its reader waits "
        "for, so the time added to it is our own waking. The balancer sees counts of messages, not these times.",
        f"A tile has at most {SLAVES} cores for threads. A process with more threads than that, the first included, "
        "waits for one of them to be taken from another thread, which we do every 10 ms: that is our own waiting, not "
        "Linux's.",
    ]
    return contents


def _move(how: str, threads: str, pages: str, written: str = "all") -> Combination:
    return combination_of("move", how, threads, pages, written)


def _scaled(results: Results, combination: Combination, metric: str, scale: float = _US) -> list[float]:
    return [scale * value for value in results.values(combination, metric)]


def _text(results: Results, combination: Combination, metric: str, scale: float = _US) -> str:
    data = _scaled(results, combination, metric, scale)
    return median(data).text() if data else "not measured"


def _bars(groups: dict[str, dict[str, list[float]]]) -> figures.Drawing:
    """Bar chart without `faithful`, whose values are out of scale and are in the tables."""
    shown = {name: {how: data for how, data in bars.items() if how != "faithful"} for name, bars in groups.items()}
    return figures.bars(shown, "us")


def _goals(results: Results, axes: Axes) -> Table:
    """Table of goals: one thread on its own core, maximum memory, by size of the working set."""
    rows = []
    for how, at_most in (("precopy", 2), ("direct", 6), ("tcp-precopy", 25), ("tcp-direct", 25)):
        for written in axes.written:
            move = _move(how, "0", LARGEST, written)
            to_2_mib, to_same = (
                analysis.ratio_or_none(results.values(move, "first"), results.values(move, base))
                for base in ("memcpy", "memcpy_same")
            )
            same = to_same.text() if to_same else "not measured"
            carried = _text(results, move, "bytes", 1 / 1024)
            to_wire = analysis.ratio_or_none(results.values(move, "first"), results.values(move, "wire"))
            what = f"downtime of {how} : copy of 2 MiB"
            sent = to_wire.text() if to_wire else "-"
            rows.append(
                (
                    what,
                    _pages(written),
                    f"at most {at_most}",
                    *goal_verdict(to_2_mib, at_most=at_most),
                    carried,
                    same,
                    sent,
                )
            )
    criu = results.values(combination_of("beside", "criu"), "downtime")
    for how in ("precopy", "direct"):
        estimate = analysis.ratio_or_none(criu, results.values(_move(how, "0", LARGEST), "first"))
        what = f"downtime with CRIU, an ordinary process : {how}"
        rows.append((what, "all", "at least 100", *goal_verdict(estimate, at_least=100), "-", "-", "-"))
    copied, sent = "to a copy of the same bytes", "to those KiB sent over TCP"
    head = ("quantity", "pages being written", "goal", "here", "", "KiB while frozen", copied, sent)
    return Table("Goals", head, rows)


def _pages(written: str) -> str:
    return f"{LARGEST} (all)" if written == "all" else f"{written} of {LARGEST}"


def goal_verdict(estimate: Estimate | None, at_most: float = math.inf, at_least: float = -math.inf) -> tuple[str, str]:
    """A ratio as text, and `reached` or `missed` if its whole interval is within or outside the bounds, else `not
    certain`."""
    if estimate is None:
        return "not measured", ""
    if at_least <= estimate.low and estimate.high <= at_most:
        return estimate.text(), "reached"
    return estimate.text(), "missed" if estimate.low > at_most or estimate.high < at_least else "not certain"


def _threads(results: Results, axes: Axes, stack: str) -> Table:
    rows = []
    for how, text in (
        ("separated", "User Area in shared memory"),
        ("joined", "in the tile's own memory"),
        ("mixed", "none: among the kernel's data"),
        ("pthreads", "pthreads, stacks of 8 MiB"),
        ("pthreads-small", f"pthreads, stacks of {stack}"),
    ):
        threads = axes.creation(how)
        counts = [
            _text(results, threads, event, 1) if results.values(threads, event) else "not counted" for event in _EVENTS
        ]
        rows.append((text, _text(results, threads, "create"), _text(results, threads, "join"), *counts))
    for how in ("mixed", "joined", "pthreads", "pthreads-small"):
        if results.values(axes.creation(how), "create"):
            rows.append((f"separated : {how}", *_ratios(results, axes, how), "-", "-", "-"))
    head = (f"{axes.created} threads", "create, us", "join, us", "branches", "data misses", "instruction misses")
    return Table("Q1: threads", head, rows)


def _ratios(results: Results, axes: Axes, base: str) -> tuple[str, str]:
    texts = []
    for metric in ("create", "join"):
        data = [results.values(axes.creation(how), metric) for how in ("separated", base)]
        estimate = analysis.ratio_or_none(*data)
        texts.append(f"{estimate.text()} ({analysis.significance_text(*data)})" if estimate else "not measured")
    return texts[0], texts[1]


def _split(results: Results, axes: Axes) -> tuple[Table, Table]:
    parts, sums = [], []
    largest = [("0", LARGEST, written) for written in axes.written]
    for threads, pages, written in [*((t, axes.pages[-1], "all") for t in axes.threads), *largest]:
        for how in (*MODES, *TCP):
            move = _move(how, threads, pages, written)
            if not results.values(move, "first"):
                continue
            sent = f"{median(results.values(move, 'bytes')).value / 1024:.0f}"
            rounds = f"{median(results.values(move, 'rounds')).value:g}"
            parts.append((how, threads, pages, written, *(_text(results, move, part) for part in _PARTS)))
            sums.append(
                (
                    how,
                    threads,
                    pages,
                    written,
                    *(_text(results, move, total) for total in _SUMS),
                    sent,
                    rounds,
                )
            )
    head = ("mode", "threads", "pages", "written")
    return (
        Table("Q2: parts of the downtime, us", (*head, *_PARTS), parts),
        Table("Q2: until the first thread, the last, and as others saw it, us", (*head, *_SUMS, "KiB", "rounds"), sums),
    )


def _grid(results: Results, axes: Axes) -> Table:
    pages = axes.pages
    rows = []
    for how in MODES:
        for threads in axes.threads:
            texts = [_text(results, _move(how, threads, p), "first") for p in pages]
            rows.append((how, threads, *texts))
    return Table(
        "Q2: downtime until the first thread runs, us", ("mode", "threads", *(f"{p} pages" for p in pages)), rows
    )


def _scheduling(results: Results, axes: Axes) -> Table:
    """Table of scheduling delays. After the first thread runs nothing is copied or decided, so later threads wait for a
    CPU or for a core of the tile. During the freeze each core must stop its thread; the excess over one thread is due
    to Linux, which does not run all cores at once."""
    rows, most = [], axes.pages[-1]
    for threads in axes.threads:
        waits_for = "Linux: a CPU" if int(threads) < SLAVES else f"the tile: one of its {SLAVES} cores, and Linux"
        for how in ("precopy", "faithful"):
            move = _move(how, threads, most)
            first, last = results.values(move, "first"), results.values(move, "all")
            if first:
                waited = [b - a for a, b in zip(first, last, strict=True)]
                share = [100 * w / b for w, b in zip(waited, last, strict=True)]
                texts = (median([_US * w for w in waited]).text(), f"{median(share).value:.0f} %")
                more = analysis.difference_or_none(
                    _scaled(results, move, "freeze"), _scaled(results, _move(how, "0", most), "freeze")
                )
                rows.append((threads, how, more.text() if more else "not measured", *texts, waits_for))
    title = f"From the first thread to the last, and the freeze, on {len(os.sched_getaffinity(0))} CPUs"
    freeze, to_last = "freeze beyond that of one thread, us", "from the first to the last, us"
    head = ("threads beside the first", "mode", freeze, to_last, "share of the time to the last", "the last waits for")
    return Table(title, head, rows)


def _parallel(results: Results, axes: Axes, combinations: Sequence[Combination]) -> Table:
    rows = []
    for how in MODES:
        for threads in axes.pair_threads:
            if axes.parallel(how, axes.pairs[0], threads) not in combinations:
                continue
            for metric, scale, what in (
                ("first_mean", _US, "downtime, us"),
                ("overlap", 1, "frozen at once, at most"),
                ("tries", 1, "begun so often"),
            ):
                texts = [_text(results, axes.parallel(how, n, threads), metric, scale) for n in axes.pairs]
                rows.append((how, threads, what, *texts))
    title = "Q3: mean downtime of moves begun together, each between its own pair of tiles"
    return Table(title, ("mode", "threads", "", *axes.pairs), rows)


def _messages(results: Results) -> Table:
    rows = []
    ways = (("tiles", "mailbox of tiles"), ("openmpi", "Open MPI, shared memory"), ("mpich", "MPICH, shared memory"))
    sizes = sorted({x for how, _ in ways for x in results.xs(combination_of("message", how), analysis.LATENCY)})
    for how, text in ways:
        data = [results.values(combination_of("message", how), analysis.LATENCY, size) for size in sizes]
        rows.append(
            (
                text,
                *(median([_US * v for v in samples]).text() if samples else "not measured" for samples in data),
            )
        )
    return Table("Half of the round trip of a message, us", ("way", *(f"{size:g} bytes" for size in sizes)), rows)
