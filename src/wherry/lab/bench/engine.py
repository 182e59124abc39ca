"""`engine`: the cost of a container's move to a program that writes and talks, beside runc and podman by hand, and over
a link beside the link's own time for the same bytes."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from wherry.base.paths import instance, native_program
from wherry.base.units import format_size, parse_rate, parse_size
from wherry.client import Client, identity
from wherry.lab.bench.baseline_container import (
    LIMIT,
    PORT,
    PROGRAM,
    SETTLE,
    ContainerByHand,
    Writing,
    closed_at_the_end,
    writer_result,
)
from wherry.lab.bench.baseline_criu import BaselineCriu, pre_dump_obstacle
from wherry.lab.bench.baseline_podman import BaselinePodman, podman_obstacle
from wherry.lab.bench.definition import Benchmark, Comparison, Goal, Levels, Row
from wherry.lab.bench.engine_files import FILE, file_comparisons, file_levels, room_for
from wherry.lab.bench.engine_job import JOB_MEMORY, cost_of_rounds
from wherry.lab.bench.engine_path import CONTENTS, path_comparisons, path_levels, way_of
from wherry.lab.bench.jobs import await_output
from wherry.lab.bench.samples import Samples
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import median

_CLUSTER = "engine"
_TO, _NEAR, _FAR = "a1", "a2", "b1"
"""Where the peer is and the writer moves to; where the writer begins, in the same site and in the other one."""
_BY_HAND = {"runc": "runc", "pre-dump": "runc with pre-dump", "podman": "podman"}
_COPIES = {"wherry": 2, "runc": 3, "pre-dump": 4, "podman": 3}
"""How often the machine holds the program's memory at the worst moment: processes and files on tmpfs."""
_SPARE, _OVERHEAD = 1 << 30, 192 << 20
"""Bytes that the rest of the machine keeps, and those of a node besides the program's memory."""
_LARGE = 1 << 30
"""From so much memory on the goals beside other tools hold."""
_BESIDE = {"runc": Goal(at_most=1 / 10), "pre-dump": None, "podman": Goal(at_most=1 / 25)}
_SLOPE, _FIXED = Goal(at_most=2.5), Goal(at_most=0.05)
_SLOWDOWN = Goal(at_most=1.05)
_FORETOLD = Goal(at_most=0.25)
_IDLE, _WRITING = Goal(at_most=1.15), Goal(at_most=1.25)


@dataclass(frozen=True)
class Engine(Benchmark):
    """Each sample is one move of a new container in which `wherry-writer` runs, whose peer stays."""

    name = "engine"
    compares = "A move under a program that writes and talks, beside runc and podman by hand, and its time over a link"
    duration = ("an hour", "a minute")
    columns = ("wherry", "beside it")
    quick_settings = {"sizes": "8MiB,256MiB", "links": "", "contents": "", "job": "", "files": ""}
    remarks = (
        "The program makes a step each millisecond: it writes some pages and exchanges a message with a peer. Gaps are "
        "the longest between two steps, as the program and as its peer see them by CLOCK_REALTIME.",
        "A sample counts only when in the end each page held the last data written to it, and no message was lost or "
        "doubled.",
        "By hand: checkpoint and restore of a container with the same program and namespaces, whose peer is in another "
        "network namespace; all files on tmpfs; the container comes back into its own network namespace, so nothing is "
        "plugged and nothing crosses a network. runc's images are copied once; podman exports without compression, "
        "and imports into a storage of its own that has the image.",
        "Over a link: the seconds that the memory takes at the bandwidth that the program's writing leaves. Memory is "
        "compressed, and goes over several connections, only in rows that name it.",
    )

    sizes: str = "8MiB,64MiB,256MiB,1GiB,4GiB"
    """Memory of the program, several values separated by commas."""
    rate: float = 20.0
    """MB that the program writes in a second."""
    working_set: str = "64MiB"
    """How much of its memory it writes, page after page."""
    links: str = "0,0.3,0.6"
    """Rates of writing while the container moves over a link, as fractions of the link's bandwidth; empty: no link."""
    link_memory: str = "1GiB"
    """Memory of the program that moves over the link, which writes all of it."""
    bandwidth: str = "1Gbit/s"
    contents: str = "numbers,random"
    """Contents of the memory that moves over the link compressed, and over several connections; empty: not."""
    files: str = "8MiB,256MiB,1GiB"
    """Sizes of a file in /dev/shm that is the program's memory, mapped shared; empty: none."""
    job: str = "B"
    """Class of NPB's CG whose iterations are timed while one of its two nodes moves; empty: not."""

    def __post_init__(self) -> None:
        if self.rate < 0 or not all(0 <= ratio < 1 for ratio in self._ratios()):
            raise ValueError("rate is not negative, and links are fractions below 1")
        if not set(self._contents()) <= set(CONTENTS):
            raise ValueError(f"contents are of {', '.join(CONTENTS)}")
        self.levels(), parse_size(self.working_set)

    def _sizes(self) -> list[int]:
        return [parse_size(size) for size in self.sizes.split(",")]

    def _file_sizes(self) -> list[int]:
        return [parse_size(size) for size in self.files.split(",") if size]

    def _ratios(self) -> list[float]:
        return [float(ratio) for ratio in self.links.split(",") if ratio]

    def _contents(self) -> list[str]:
        return [what for what in self.contents.split(",") if what]

    def _over_links(self) -> list[dict[str, Any]]:
        memory = parse_size(self.link_memory)
        seconds = 8 * memory / parse_rate(self.bandwidth)
        where = {"part": "link", "by": "wherry", "memory": memory}
        return [{**where, "ratio": ratio, "bound": seconds / (1 - ratio)} for ratio in self._ratios()]

    def levels(self) -> Sequence[Levels]:
        kinds = ("wherry", *_BY_HAND)
        near = [{"part": "size", "by": by, "memory": size} for size in self._sizes() for by in kinds]
        jobs = [{"part": "job", "by": "wherry", "memory": JOB_MEMORY}] if self.job else []
        paths = path_levels(parse_size(self.link_memory), self._contents())
        return [*near, *file_levels(self._file_sizes()), *self._over_links(), *paths, *jobs]

    def prepare(self, client: Client) -> None:
        files = [room_for(size) for size in self._file_sizes()]
        most = max([*self._sizes(), *files, parse_size(self.link_memory), JOB_MEMORY])
        memory = f"{2 * (most + _OVERHEAD) + _SPARE}B"
        fabric = {
            "kind": "fabric",
            "version": 1,
            "name": "engine",
            "sites": [{"name": "a"}, {"name": "b"}],
            "hosts": [{"name": name, "site": name[0], "cores": 2, "memory": memory} for name in (_TO, _NEAR, _FAR)],
            "links": [{"between": ["a", "b"], "bandwidth": self.bandwidth}],
        }
        client.wait(client.fabric_up(fabric, "the benchmark's fabric").id)

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        by, memory = levels["by"], levels["memory"]
        if levels["part"] == "job":
            yield cost_of_rounds(client, _CLUSTER, (_TO, _NEAR), self.job, self.bandwidth, directory)
            return
        way = dict[str, object]()
        if levels["part"] == "link":
            way = {"compress": "off"}
            writing = Writing(memory, levels["ratio"] * parse_rate(self.bandwidth) / 8, memory)
        elif levels["part"] == "path":
            is_random, way = levels["contents"] == "random", way_of(levels)
            writing = Writing(memory, 1e6 * self.rate, parse_size(self.working_set), is_random)
        else:
            file = FILE if levels["part"] == "files" else ""
            writing = Writing(memory, 1e6 * self.rate, parse_size(self.working_set), file=file)
        obstacle = _obstacle(by, memory)
        if obstacle:
            yield {"left_out": obstacle}
        elif by == "wherry":
            near = levels["part"] in ("size", "files")
            yield _move_by_wherry(client, writing, _NEAR if near else _FAR, way, directory)
        else:
            with closed_at_the_end(_by_hand(by, writing)) as container:
                yield container.run()

    def describe_sample(self, row: Row) -> str:
        if "left_out" in row:
            return f"left out: {row['left_out']}"
        fields = (*_GAPS, *_REPORTED, "total", "moving", "still")
        return ", ".join(f"{field} {row[field]:.3f}" for field in fields if row.get(field) is not None)

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        paths = path_comparisons(samples, parse_size(self.link_memory), self._contents())
        beside = (*self._slopes(samples), *self._beside_links(samples))
        files = file_comparisons(samples, self._file_sizes())
        return [*self._by_size(samples), *files, *beside, *paths, *self._of_a_job(samples), *_forecasts(samples)]

    def _by_size(self, samples: Samples) -> list[Comparison]:
        rows = []
        for size in self._sizes():
            title = format_size(size)
            where = {"part": "size", "memory": size}
            for field, text in _SEEN.items():
                ours = samples.values(field, **where, by="wherry")
                for by, name in _BY_HAND.items():
                    theirs = samples.values(field, **where, by=by)
                    if theirs:
                        goal = _BESIDE[by] if size >= _LARGE and field in _GAPS else None
                        rows.append(Comparison(f"{title}, {text}, beside {name}", ours, theirs, goal))
            for field, text in _REPORTED.items():
                rows.append(Comparison(f"{title}, {text}", samples.values(field, **where, by="wherry")))
        return rows

    def _slopes(self, samples: Samples) -> list[Comparison]:
        """The fixed part, and the part that the largest memory adds to it."""
        least, most = min(self._sizes()), max(self._sizes())
        rows = []
        for field, text in _GAPS.items():
            small, large = (samples.values(field, part="size", by="wherry", memory=size) for size in (least, most))
            rows.append(Comparison(f"{format_size(least)}, {text}", small, goal=_FIXED))
            if most > least:
                label = f"{format_size(most)} beside {format_size(least)}, {text}"
                rows.append(Comparison(label, large, small, _SLOPE))
        return rows

    def _beside_links(self, samples: Samples) -> list[Comparison]:
        rows = []
        for levels in self._over_links():
            title = f"{format_size(levels['memory'])} over {self.bandwidth}, {levels['ratio']:g} of it written"
            totals = samples.values("total", **levels)
            bounds = [levels["bound"]] * len(totals)
            rows.append(Comparison(f"{title}: the move, s", totals, bounds, _WRITING if levels["ratio"] else _IDLE))
            rows.append(Comparison(f"{title}: gap that the program sees, s", samples.values("gap", **levels)))
        return rows

    def _of_a_job(self, samples: Samples) -> list[Comparison]:
        moving, still = (samples.values(field, part="job") for field in ("moving", "still"))
        label = f"CG of class {self.job}: an iteration in the rounds of a move, beside others, s"
        return [Comparison(label, moving, still, _SLOWDOWN)] if self.job else []

    def tables(self, samples: Samples) -> Sequence[Table]:
        found = []
        moves = {size: list(samples.good(part="size", by="wherry", memory=size)) for size in self._sizes()}
        phases = dict.fromkeys(name for rows in moves.values() for row in rows for name in row.get("phases", ()))
        if phases:
            cells = [[name, *(_median_phase(rows, name) for rows in moves.values())] for name in phases]
            found.append(Table("Phases of Wherry's moves, ms", ["", *map(format_size, moves)], cells))
        missing = _missing(samples)
        if missing:
            found.append(Table("Not measured", ["what", "why"], missing))
        return found


_GAPS = {"gap": "gap that the program sees, s", "peer_gap": "gap that its peer sees, s"}
_SEEN = {**_GAPS, "total": "the move, s", "mib": "MiB that are sent"}
_REPORTED = {"downtime": "downtime that Wherry reports, s"}


def _forecasts(samples: Samples) -> list[Comparison]:
    """How far moves were from their predictions: nine of ten moves are nearer. The saving by compression is not
    predicted."""
    rows, plain = [], [row for row in samples.good(by="wherry") if row.get("compress") != "on"]
    for figure, goal in (("downtime", _FORETOLD), ("total", None)):
        moves = [row for row in plain if row.get(f"told_{figure}") and row.get(figure)]
        errors = [abs(row[figure] / row[f"told_{figure}"] - 1) for row in moves]
        if len(errors) > 1:
            nine_tenths = quantiles(errors, n=10, method="inclusive")[-1]
            label = f"{figure}: |came / foretold - 1| that nine of ten of {len(errors)} moves do not exceed"
            rows.append(Comparison(label, [nine_tenths], goal=goal))
    return rows


def _by_hand(by: str, writing: Writing) -> ContainerByHand:
    if by == "podman":
        return BaselinePodman(instance(), writing)
    return BaselineCriu(instance(), writing, pre_dump=by == "pre-dump")


def _obstacle(by: str, memory: int) -> str:
    """Why this is not measured here; empty when it can be."""
    reason = {"podman": podman_obstacle, "pre-dump": pre_dump_obstacle}.get(by, str)()
    if reason:
        return reason
    needed, available = _COPIES[by] * memory + _SPARE, _available_memory()
    if needed <= available:
        return ""
    return f"{_COPIES[by]} copies need {format_size(needed)}, and {format_size(available)} of memory are available"


def _available_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def _move_by_wherry(client: Client, writing: Writing, start: str, way: dict[str, object], directory: Path) -> Row:
    """Rank 0 is the peer, at the destination; rank 1 is the writer, whose node moves there from `start`."""
    owner = identity.process_owner(directory)
    program = directory / PROGRAM
    if not program.exists():
        shutil.copy(native_program(PROGRAM), program)
    memory = f"{(room_for(writing.memory) if writing.file else writing.memory) + _OVERHEAD}B"
    spec = {"name": _CLUSTER, "nodes": 2, "cpus": 1.0, "memory": memory, "hosts": [_TO, start]}
    client.wait(client.up(spec, "the benchmark's cluster", owner).id)
    address = next(node.address for node in client.nodes(_CLUSTER) if node.index == 0)
    peer = shlex.join([str(program), "peer", address, str(PORT)])
    writer = shlex.join([str(program), *writing.arguments(address)])
    script = f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] && exec {peer}; exec {writer}'
    job = client.run(_CLUSTER, ["/bin/sh", "-c", script], 2, mpi="openmpi", input=True, owner=owner)
    await_output(client, job.id, b"ready", LIMIT)
    time.sleep(SETTLE)
    move = client.moved(client.wait(client.begin_move(f"{_CLUSTER}-1", _TO, parameters=way).id))
    time.sleep(SETTLE)
    client.feed(job.id, lambda: b"")
    output = b"".join(data for stream, _, data in client.output(job.id, seconds=LIMIT) if stream == "stdout")
    views = {"downtime": move.downtime, "downtime_peer": move.downtime_peer, "downtime_engine": move.downtime_engine}
    row = {**writer_result(output.decode(errors="replace")), **views, "total": move.total, "mib": move.bytes / 2**20}
    if (told := move.predicted) and not told.basis.startswith("assumed"):
        row |= {"told_downtime": told.downtime, "told_total": told.seconds}
    return {**row, "phases": move.phases, "rounds": [round.model_dump() for round in move.rounds]}


def _median_phase(rows: Sequence[Row], name: str) -> str:
    seconds = [row["phases"][name] for row in rows if name in row.get("phases", ())]
    return f"{1e3 * median(seconds).value:.1f}" if seconds else "-"


def _missing(samples: Samples) -> list[list[str]]:
    """Treatments that were left out or failed, and why: a line for each reason."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for row in (*samples.good(), *samples.bad()):
        reason = row.get("left_out") or row.get("problem")
        if reason:
            found.setdefault((row["by"], reason), {})[format_size(row["memory"])] = None
    return [[f"{by}, {', '.join(sizes)}", reason] for (by, reason), sizes in found.items()]
