"""What the study `manycore` shows: what was to be reached, the three questions, and the paper's numbers beside ours."""

from __future__ import annotations

import os
from collections.abc import Sequence

from wherry.lab.report import Table
from wherry.lab.stats import Estimate, median
from wherry.lab.study import analysis, figures, published
from wherry.lab.study.manycore import LARGEST, TCP, Manycore
from wherry.lab.study.recipe import Cell, Page
from wherry.lab.study.results import Results
from wherry.manycore.board import MODES

_PAPER = "the Nanvix paper: Kalray MPPA-256, 400 MHz, 2 MB and 16 cores for each cluster"
_PARTS = ("freeze", "copy", "commit", "resume")
_SUMS = ("first", "all", "seen")
_US = 1e6
_EVENTS = ("branches", "data_misses", "instruction_misses")


def page(study: Manycore, results: Results) -> Page:
    """Tables and figures of what has been measured so far."""
    cells = study.cells()
    made = Page()
    made.tables += [_goals(results), _threads(results), *_split(results, cells), _grid(results, cells)]
    made.tables += [_scheduling(results, cells), _parallel(results, cells), _messages(results), _published(results)]
    standing = {
        t: {how: _scaled(results, _move(how, t, "32"), "first") for how in MODES} for t in _axis(cells, "threads")
    }
    made.figures.append(("Downtime of one move until the first thread runs, 32 pages, over threads.", _bars(standing)))
    once = {n: {how: _scaled(results, _at_once(how, n), "first_mean") for how in MODES} for n in ("1", "2", "4", "8")}
    made.figures.append(("Mean downtime of moves at the same time, over pairs of tiles.", _bars(once)))
    made.remarks += [
        "Downtime is from the moment before the source's cores are asked to stop until a thread runs at the "
        "destination: the first one, or the last of those that were ready. `seen` is from the request to the answer, "
        "as who asked for it sees it, preparation included: that is how the paper's observer measured. Between hosts, "
        "where clocks differ, the way of the process counts as half of what the way there and back took.",
        f"The machine has {len(os.sched_getaffinity(0))} CPUs for this process. The floor is a copy of 2 MiB between "
        "two parts of a shared memory file, both just used, in the same minute as each move.",
        "Threads are created and joined on as many slave cores as there are CPUs: with more, it would be Linux that "
        "is measured.",
    ]
    return made


def _move(how: str, threads: str, pages: str) -> Cell:
    return Cell.of(what="move", how=how, threads=threads, pages=pages, pairs="-")


def _at_once(how: str, pairs: str, threads: str = "1") -> Cell:
    return Cell.of(what="parallel", how=how, threads=threads, pages="32", pairs=pairs)


def _one(what: str, how: str, threads: str = "-") -> Cell:
    return Cell.of(what=what, how=how, threads=threads, pages="-", pairs="-")


def _axis(cells: Sequence[Cell], factor: str) -> list[str]:
    found = {cell[factor] for cell in cells if cell["what"] == "move" and cell["pages"] != LARGEST}
    return sorted(found, key=int)


def _scaled(results: Results, cell: Cell, metric: str, scale: float = _US) -> list[float]:
    return [scale * value for value in results.values(cell, metric)]


def _text(results: Results, cell: Cell, metric: str, scale: float = _US) -> str:
    data = _scaled(results, cell, metric, scale)
    return median(data).text() if data else "not measured"


def _bars(groups: dict[str, dict[str, list[float]]]) -> figures.Drawing:
    """`faithful` is out of scale beside the others: it is in the tables."""
    shown = {name: {how: data for how, data in bars.items() if how != "faithful"} for name, bars in groups.items()}
    return figures.bars(shown, "us")


def _goals(results: Results) -> Table:
    """For one thread on its own core, with as much memory as a program can have."""
    rows = []
    precopy = results.values(_move("precopy", "0", LARGEST), "first")
    for how, most in (("precopy", 2), ("direct", 6), ("tcp-precopy", 25), ("tcp-direct", 25)):
        cell = _move(how, "0", LARGEST)
        found = analysis.compare_samples(results.values(cell, "first"), results.values(cell, "memcpy"))
        rows.append(
            (f"downtime of {how} : copy of 2 MiB", f"at most {most}", *_judged(found, lambda x, m=most: x <= m))
        )
    found = analysis.compare_samples(results.values(_one("beside", "criu"), "downtime"), precopy)
    rows.append(
        ("downtime with CRIU, an ordinary process : precopy", "at least 100", *_judged(found, lambda x: x >= 100))
    )
    return Table("What was to be reached", ("quantity", "goal", "here", ""), rows)


def _judged(found: Estimate | None, good: object) -> tuple[str, str]:
    if found is None:
        return "not measured", ""
    return found.text(), "reached" if callable(good) and good(found.value) else "missed"


def _threads(results: Results) -> Table:
    rows = []
    for how, text in (
        ("separated", "User Area separated"),
        ("joined", "among the kernel's data"),
        ("pthreads", "pthreads"),
    ):
        cell = _one("threads", how, "17")
        counts = [_text(results, cell, event, 1) if results.values(cell, event) else "not counted" for event in _EVENTS]
        rows.append((text, _text(results, cell, "create"), _text(results, cell, "join"), *counts))
    parted = [results.values(_one("threads", how, "17"), "create") for how in ("separated", "joined")]
    if all(parted):
        rows.append(("separated : joined", *_ratios(results), "-", "-", "-"))
    head = ("17 threads", "create, us", "join, us", "branches", "data misses", "instruction misses")
    return Table("Q1: threads", head, rows)


def _ratios(results: Results) -> tuple[str, str]:
    texts = []
    for metric in ("create", "join"):
        data = [results.values(_one("threads", how, "17"), metric) for how in ("separated", "joined")]
        found = analysis.compare_samples(*data)
        texts.append(f"{found.text()} ({analysis.verdict(*data)})" if found else "not measured")
    return texts[0], texts[1]


def _split(results: Results, cells: Sequence[Cell]) -> tuple[Table, Table]:
    parts, sums = [], []
    for threads, pages in [*((t, "32") for t in _axis(cells, "threads")), ("0", LARGEST)]:
        for how in (*MODES, *TCP):
            cell = _move(how, threads, pages)
            if not results.values(cell, "first"):
                continue
            sent = f"{median(results.values(cell, 'bytes')).value / 1024:.0f}"
            rounds = f"{median(results.values(cell, 'rounds')).value:g}"
            parts.append((how, threads, pages, *(_text(results, cell, part) for part in _PARTS)))
            sums.append((how, threads, pages, *(_text(results, cell, one) for one in _SUMS), sent, rounds))
    head = ("mode", "threads", "pages")
    return (
        Table("Q2: what the downtime is made of, us", (*head, *_PARTS), parts),
        Table("Q2: until the first thread, the last, the answer, us", (*head, *_SUMS, "KiB", "rounds"), sums),
    )


def _grid(results: Results, cells: Sequence[Cell]) -> Table:
    pages = _axis(cells, "pages")
    rows = []
    for how in MODES:
        for threads in _axis(cells, "threads"):
            texts = [_text(results, _move(how, threads, p), "first") for p in pages]
            rows.append((how, threads, *texts))
    return Table(
        "Q2: downtime until the first thread runs, us", ("mode", "threads", *(f"{p} pages" for p in pages)), rows
    )


def _scheduling(results: Results, cells: Sequence[Cell]) -> Table:
    """After the first thread nothing is copied or decided: who does not run yet waits for a CPU."""
    rows = []
    for threads in _axis(cells, "threads"):
        for how in ("precopy", "faithful"):
            cell = _move(how, threads, "32")
            first, last = results.values(cell, "first"), results.values(cell, "all")
            if first:
                waited = [b - a for a, b in zip(first, last, strict=True)]
                share = [100 * w / b for w, b in zip(waited, last, strict=True)]
                texts = (median([_US * w for w in waited]).text(), f"{median(share).value:.0f} %")
                rows.append((threads, how, *texts))
    title = f"The host's scheduling: from the first thread to the last, on {len(os.sched_getaffinity(0))} CPUs"
    return Table(title, ("threads", "mode", "us", "share of the time to the last"), rows)


def _parallel(results: Results, cells: Sequence[Cell]) -> Table:
    rows = []
    for how in MODES:
        for threads in sorted({cell["threads"] for cell in cells if cell["what"] == "parallel"}, key=int):
            texts = [_text(results, _at_once(how, n, threads), "first_mean") for n in ("1", "2", "4", "8")]
            rows.append((how, threads, *texts))
    title = "Q3: mean downtime of moves at the same time, each between its own pair of tiles, us"
    return Table(title, ("mode", "threads", "1", "2", "4", "8"), rows)


def _messages(results: Results) -> Table:
    rows = []
    ways = (("tiles", "mailbox of tiles"), ("openmpi", "Open MPI, shared memory"), ("mpich", "MPICH, shared memory"))
    for how, text in ways:
        data = [results.values(_one("message", how), analysis.LATENCY, size) for size in (8, 128)]
        rows.append((text, *(median([_US * v for v in one]).text() if one else "not measured" for one in data)))
    return Table("Half of the round trip of a message, us", ("way", "8 bytes", "128 bytes"), rows)


def _published(results: Results) -> Table:
    few, many = _move("faithful", "1", "32"), _move("faithful", "15", "32")
    growth = analysis.compare_samples(results.values(many, "first"), results.values(few, "first"))
    jump = analysis.compare_samples(
        results.values(_move("faithful", "16", "32"), "all"), results.values(_move("faithful", "15", "32"), "all")
    )
    flat = analysis.compare_samples(
        results.values(_at_once("faithful", "8"), "first_mean"), results.values(_at_once("faithful", "1"), "first_mean")
    )
    data = [results.values(_one("threads", how, "17"), "create") for how in ("separated", "joined")]
    rows = [
        published.Beside("downtime, 1 thread", "19 ms", _PAPER, _text(results, few, "seen", 1e3) + " ms (seen)", "X"),
        published.Beside("downtime, most threads and pages", "113 ms", _PAPER, _largest(results), "X"),
        published.Beside(
            "15 threads : 1 thread", "5.3 (growth of 431 %)", _PAPER, growth, "the direction: linear in bytes"
        ),
        published.Beside(
            "16 threads : 15 threads",
            "3.3 (+230 %)",
            _PAPER,
            jump,
            "the cause: more threads than cores; here than CPUs",
        ),
        published.Beside("8 moves at once : 1", "1.0", _PAPER, flat, "nothing with fewer than 16 CPUs"),
        published.Beside(
            "creating threads, separated : not",
            "slightly below 1",
            _PAPER,
            analysis.compare_samples(*data),
            "the direction; branches -7.8 %, D-cache misses -5.8 %, I-cache misses -6.5 % where the machine counts",
        ),
    ]
    return published.table(rows)


def _largest(results: Results) -> str:
    for threads in ("17", "15"):
        data = results.values(_move("faithful", threads, "32"), "seen")
        if data:
            return f"{median([1e3 * value for value in data]).text()} ms (seen, {threads} threads)"
    return "not measured"
