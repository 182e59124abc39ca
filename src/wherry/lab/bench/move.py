"""`move`: the downtime of a node with many processes, threads, mappings or files, and its parts by step."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.base.units import parse_size
from wherry.client import Client, identity
from wherry.lab.bench.definition import Benchmark, Comparison, Goal, Levels, Row
from wherry.lab.bench.jobs import await_output
from wherry.lab.bench.samples import Samples
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import median

_HOSTS = ("a1", "a2")
_PROGRAM, _CLUSTER = "wherry-crowd", "crowd"
_ALONE = {"processes": 1, "threads": 0, "mappings": 0, "files": 0}
"""The program when it has many of nothing."""
_SPARE = 512 << 20
"""Bytes that a node has beside the memory of the program."""
_LIMIT, _SETTLE = 300.0, 0.5
"""Seconds for the program to begin or to end, and for which it runs before a move."""
_PHASES = ("freeze", "transfer", "restore", "commit", "thaw")
_GOALS = {("processes", 64): 0.25, ("threads", 400): 0.2, ("mappings", 15000): 0.2}
"""Longest downtime of a node in seconds, by its contents."""
_EACH_PROCESS = Goal(at_most=0.002)


@dataclass(frozen=True)
class Move(Benchmark):
    """A program makes a step each 10 ms in each process while its node moves to and fro."""

    name = "move"
    compares = "A move of a node with many processes, threads, mappings or files: its downtime in each step"
    duration = ("five minutes", "half a minute")
    columns = ("wherry", "-")
    repetitions = 4
    quick_settings = {"processes": "1,8", "threads": "", "mappings": "", "files": ""}
    remarks = (
        "A sample counts only when in the end each page and each file held the data written to it.",
        "Each further process: the downtime beyond that of a node with a single process, divided by the number of "
        "further processes.",
    )

    processes: str = "1,4,16,64"
    """Numbers of processes, separated by commas."""
    threads: str = "400"
    """Numbers of further threads of one process; empty: none."""
    mappings: str = "15000"
    """Numbers of further mappings of one process, each a page; empty: none."""
    files: str = "1000"
    """Numbers of files that one process has open; empty: none."""
    memory: str = "32MiB"
    """Memory of each process."""
    moves: int = 3
    """Moves of each program."""

    def __post_init__(self) -> None:
        if self.moves < 1 or 1 not in self._counts("processes"):
            raise ValueError("there is a move at least, and one process is among the numbers of processes")
        if any(count < 1 for what in _ALONE for count in self._counts(what)):
            raise ValueError("numbers are positive")
        parse_size(self.memory)

    def _counts(self, what: str) -> list[int]:
        return [int(count) for count in str(getattr(self, what)).split(",") if count]

    def levels(self) -> Sequence[Levels]:
        return [{"many": what, "count": count} for what in _ALONE for count in self._counts(what)]

    def prepare(self, client: Client) -> None:
        memory = f"{self._memory(max(self._counts('processes'))) * 2}B"
        hosts = [{"name": name, "site": "a", "cores": 2, "memory": memory} for name in _HOSTS]
        fabric = {"kind": "fabric", "version": 1, "name": "move", "sites": [{"name": "a"}], "hosts": hosts}
        client.wait(client.fabric_up(fabric, "the benchmark's fabric").id)

    def _memory(self, processes: int) -> int:
        return processes * 2 * parse_size(self.memory) + _SPARE

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        owner, counts = identity.process_owner(directory), {**_ALONE, levels["many"]: levels["count"]}
        program = directory / _PROGRAM
        if not program.exists():
            shutil.copy(native_program(_PROGRAM), program)
        memory = f"{self._memory(counts['processes'])}B"
        spec = {"name": _CLUSTER, "nodes": 1, "cpus": 2.0, "memory": memory, "hosts": [_HOSTS[0]]}
        client.wait(client.up(spec, "the benchmark's cluster", owner).id)
        numbers = (counts["processes"], parse_size(self.memory), counts["threads"], counts["mappings"], counts["files"])
        job = client.run(_CLUSTER, [str(program), *map(str, numbers)], 1, input=True, owner=owner)
        await_output(client, job.id, b"ready", _LIMIT)
        rows = list[Row]()
        for number in range(self.moves):
            time.sleep(_SETTLE)
            move = client.move(f"{_CLUSTER}-0", _HOSTS[(number + 1) % 2])
            rows.append({"downtime": move.downtime, "total": move.total, "phases": move.phases})
        client.feed(job.id, lambda: b"")
        output = b"".join(data for stream, _, data in client.output(job.id, seconds=_LIMIT) if stream == "stdout")
        found = [json.loads(line) for line in output.decode(errors="replace").splitlines() if line.startswith("{")]
        if not found:
            raise Failed(Code.FAILED, f"the program printed no result after {len(rows)} moves", repr(output[-300:]))
        if wrong := found[-1]["wrong"]:
            raise Failed(Code.FAILED, f"{wrong} pages or files were wrong after {len(rows)} moves")
        rows[-1]["gap"] = found[-1]["gap"]
        yield from rows

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        rows = []
        for levels in self.levels():
            what, count = levels["many"], levels["count"]
            most = _GOALS.get((what, count)) if parse_size(self.memory) == parse_size("32MiB") else None
            goal = None if most is None else Goal(at_most=most)
            rows.append(Comparison(f"{count} {what}: downtime, s", samples.values("downtime", **levels), goal=goal))
            if what == "processes" and count > 1:
                one = samples.values("downtime", many=what, count=1)
                each = [(seconds - median(one).value) / (count - 1) for seconds in rows[-1].samples] if one else []
                rows.append(Comparison(f"{count} {what}: each further process, s", each, goal=_EACH_PROCESS))
        return rows

    def tables(self, samples: Samples) -> Sequence[Table]:
        lines = []
        for levels in self.levels():
            phases = [row["phases"] for row in samples.good(**levels)]
            gaps, totals = samples.values("gap", **levels), samples.values("total", **levels)
            if not phases:
                continue
            shown = [*([one[name] for one in phases] for name in _PHASES), gaps, totals]
            medians = [f"{1e3 * median(seconds).value:.1f}" if seconds else "-" for seconds in shown]
            lines.append([f"{levels['count']} {levels['many']}", *medians])
        head = ["a node with", *_PHASES, "longest gap of any process", "total migration time"]
        return [Table("Medians in milliseconds", head, lines, main=True)]
