"""`collectives-simulated`: collectives of many ranks over two sites in a simulator, by libraries' algorithms and by
sites."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.base.units import parse_duration, parse_rate, parse_size
from wherry.client import Client
from wherry.lab.bench.collectives import geometric_means, read_cases
from wherry.lab.bench.definition import Benchmark, Comparison, Goal, Levels, Row
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.smpi import SELECTORS, TwoSites, obstacle, simulate

_MEANS = {"ompi": Goal(at_least=6), "mpich": Goal(at_least=8)}
"""Goals of the geometric mean of own : by sites, for so many ranks:"""
_MEANT_FOR = 96
_LARGE = Goal(at_least=15)
"""Goal of own : by sites of the allreduce of `large` ranks."""
_ONLY = "allreduce"
_WARM = {"own": 1, "sites": 7}
"""Calls of each case that do not count: the seventh compares what the six before it took."""


@dataclass(frozen=True)
class CollectivesSimulated(Benchmark):
    """All times are simulated, by SimGrid. One run for each number of ranks, placement, library whose algorithms are
    simulated, and way. The code of collectives by sites is the code that jobs load.
    """

    name = "collectives-simulated"
    compares = "Simulated: time of collectives over two sites (ms) by sites, beside the algorithms of an MPI"
    duration = ("two hours", "a minute")
    columns = ("by sites, simulated", "own, simulated")
    repetitions = 1
    quick_repetitions = 1
    quick_settings = {"ranks": "16", "seeds": "1"}  # noqa: RUF012
    keeps_clusters = True
    remarks = (
        "Simulated by SimGrid's SMPI: a network of two sites without TCP and without processors; own are the "
        "algorithms that Open MPI 3.1 and MPICH 3.3 choose.",
    )

    ranks: str = "16,96"
    """Numbers of ranks, one on each host, half of them at either site."""
    seeds: str = "1,2,3"
    """Of the order in which ranks are placed."""
    sizes: int = 5
    """Sizes of each operation, of five from 8 B to 1 MiB (64 KiB where each rank gets the data of all)."""
    rounds: int = 1
    """Calls of each case by sites that count."""
    large: int = 0
    """Ranks of one more case, an allreduce of 8 bytes (1024: ten minutes for each seed); 0: none."""
    latency: str = "10ms"
    """One-way latency of the link between the sites."""
    bandwidth: str = "1Gbit/s"
    eager: str = "0B"
    """Messages of fewer bytes (at most 64 KiB) begin before their receiver has called."""

    def __post_init__(self) -> None:
        if not 1 <= self.sizes <= 5 or self.rounds < 1:
            raise ValueError("1 to 5 sizes and at least a round")
        if not all(3 <= ranks <= 4096 for ranks in [*_numbers(self.ranks), self.large or 3]):
            raise ValueError("3 to 4096 ranks")
        if parse_size(self.eager) > 65536:
            raise ValueError("eager is at most 64KiB")
        self.levels(), self._place(3, 1)

    def levels(self) -> Sequence[Levels]:
        counts = [(ranks, "all") for ranks in _numbers(self.ranks)] + ([(self.large, _ONLY)] if self.large else [])
        return [
            {"ranks": ranks, "operations": operations, "seed": seed, "mpi": mpi, "way": way}
            for (ranks, operations), seed, mpi, way in product(counts, _numbers(self.seeds), SELECTORS, _WARM)
        ]

    def prepare(self, client: Client) -> None:
        if missing := obstacle():
            raise Refused(Code.UNSUPPORTED, "nothing can be simulated", missing, "make setup-simgrid")

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        way, only = levels["way"], levels["operations"] != "all"
        rounds = self.rounds if way == "sites" else 1  # one is like another one
        warm = 1 if only else _WARM[way]
        words = [str(1 if only else self.sizes), str(rounds), str(warm), *([_ONLY] if only else [])]
        where = self._place(levels["ranks"], levels["seed"])
        by_sites, eager = way == "sites", parse_size(self.eager)
        output = simulate(where, levels["mpi"], words, directory, by_sites=by_sites, eager=eager)
        yield from ({**row, "simulated": True} for row in read_cases(output))

    def _place(self, ranks: int, seed: int) -> TwoSites:
        return TwoSites(ranks, seed, parse_duration(self.latency), float(parse_rate(self.bandwidth)))

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        rows = []
        for ranks, (mpi, title) in product(_numbers(self.ranks), SELECTORS.items()):
            where = {"ranks": ranks, "mpi": mpi, "operations": "all"}
            for what, size in dict.fromkeys((row["what"], row["bytes"]) for row in samples.good(**where)):
                ours, own = (samples.values("ms", **where, way=way, what=what, bytes=size) for way in ("sites", "own"))
                rows.append(Comparison(f"{title}, {ranks} ranks: {what} {size} B", ours, own))
            label = f"{title}, {ranks} ranks: geometric mean of own : by sites"
            goal = _MEANS[mpi] if ranks >= _MEANT_FOR else None
            rows.append(Comparison(label, geometric_means(samples, "seed", **where), goal=goal))
        for mpi, title in SELECTORS.items() if self.large else ():
            found = geometric_means(samples, "seed", ranks=self.large, mpi=mpi, operations=_ONLY)
            rows.append(Comparison(f"{title}, {self.large} ranks: {_ONLY} 8 B, own : by sites", found, goal=_LARGE))
        return rows


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers such as 16,96") from None
