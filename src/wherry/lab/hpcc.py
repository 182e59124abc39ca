"""HPL inside Debian's unmodified `hpcc`: writes its input file and parses its output.

hpcc runs other tests first; HPL runs last, over every combination of the algorithm's variants. The begin and end of HPL
are timed by watching the output file from outside the node: the clock of a node that moves stops with it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path

INPUT, OUTPUT = "hpccinf.txt", "hpccoutf.txt"
WRAPPER_SCRIPT = """\
#!/bin/sh
# Runs hpcc where its files cannot be read: the first rank writes the input and copies the growing output to stdout.
if [ "${{OMPI_COMM_WORLD_RANK:-${{PMI_RANK:-0}}}}" = 0 ]; then
  cat >{input} <<'END'
{text}
END
  : >{output}
  exec 3<{output}
  (while sleep 0.2; do cat <&3; done) &
  shower=$!
fi
{program}
code=$?
if [ "$shower" ]; then
  kill "$shower"
  cat <&3
fi
exit $code
"""
"""Shell script that runs hpcc (`program`) with the input file `text`."""
BEGIN, END = "Begin of HPL section", "End of HPL section"
_RESULT_ROW = re.compile(r"^W[RC]\w+\s+(\d+)\s+\d+\s+\d+\s+\d+\s+([\d.]+)\s+([\d.e+-]+)$", re.MULTILINE)
RING = "ring_bandwidth"
_B_EFF = {
    "ping_latency": ("AvgPingPongLatency_usec", 1e-6),
    "ring_latency": ("RandomlyOrderedRingLatency_usec", 1e-6),
    RING: ("RandomlyOrderedRingBandwidth_GBytes", 1e9),
}
"""hpcc's communication test (b_eff): our name -> its name in the summary, factor to seconds or bytes/s."""
MOST_RUNS = 3 * 3 * 6 * 2
"""Factorisations of all variants that HPL has."""
_PASSED = re.compile(r"(\d+) tests completed and passed residual checks")
_FAILED = re.compile(r"(\d+) tests completed and failed residual checks")


def grid(ranks: int) -> tuple[int, int]:
    """The shorter and the longer side of a grid of so many ranks that is as square as they allow."""
    side = next(side for side in range(math.isqrt(ranks), 0, -1) if ranks % side == 0)
    return side, ranks // side


@dataclass(frozen=True)
class Problem:
    """HPL's parameters: matrix order, block size, process grid P x Q, number of values tried for each algorithm
    variant."""

    n: int = 1000
    nb: int = 80
    p: int = 2
    q: int = 2
    pfacts: int = 3
    rfacts: int = 2
    bcasts: int = 4
    depths: int = 2

    @classmethod
    def of(cls, n: int, nb: int, ranks: int, runs: int) -> Problem:
        """A problem for so many ranks, in a grid that is as square as they allow (1 x 3, 2 x 3), with so many
        factorisations: as near above `runs` as HPL's variants combine, the broadcasts' first."""
        p, q = grid(ranks)
        combined = product(range(1, 4), range(1, 4), range(1, 7), range(1, 3))
        enough = [counts for counts in combined if math.prod(counts) >= runs]
        pfacts, rfacts, bcasts, depths = min(enough, key=lambda one: (math.prod(one), -one[2], -one[3], one))
        return cls(n, nb, p, q, pfacts, rfacts, bcasts, depths)

    @property
    def runs(self) -> int:
        """Number of factorisations."""
        return self.pfacts * self.rfacts * self.bcasts * self.depths

    @property
    def operations(self) -> float:
        """Floating-point operations of all runs: 2/3 n^3 + 3/2 n^2 each, as HPL counts (HPL_pdtest.c)."""
        return self.runs * (2 / 3 * self.n**3 + 3 / 2 * self.n**2)

    @property
    def description(self) -> str:
        """One line for tables and captions."""
        return f"n = {self.n}, {self.p} x {self.q} ranks, {self.runs} factorisations"

    def wrapper_script(self, program: str) -> str:
        """A script that runs hpcc with this problem and copies its output file to stdout, for nodes with private
        files."""
        return WRAPPER_SCRIPT.format(input=INPUT, output=OUTPUT, text=self.text().rstrip("\n"), program=program)

    def text(self) -> str:
        """The input file."""
        head = [
            "HPLinpack benchmark input file",
            "Wherry",
            "HPL.out",
            8,
            1,
            self.n,
            1,
            self.nb,
            0,
            1,
            self.p,
            self.q,
            16.0,
        ]
        panels = [*_first_values(self.pfacts), 1, 4, 1, 2]
        variants = [*_first_values(self.rfacts), *_first_values(self.bcasts), *_first_values(self.depths)]
        tail = [2, 64, 0, 0, 1, 8, "separator", 0, 1200, 0, 40, ""]
        return "\n".join(str(line) for line in (*head, *panels, *variants, *tail))


@dataclass(frozen=True)
class Result:
    """Parsed output of one run. `times`: seconds of each factorisation by hpcc's own clock; `b_eff`: latencies (s) and
    the per-rank bandwidth of a random-order ring (B/s), measured before HPL."""

    passed: int
    failed: int
    times: tuple[float, ...]
    finished: bool
    b_eff: dict[str, float]

    def verified(self, problem: Problem) -> bool:
        """True when HPL completed and all residual checks of the problem passed."""
        return self.finished and self.failed == 0 and self.passed == problem.runs == len(self.times)


def _first_values(count: int) -> tuple[int, str]:
    return count, " ".join(str(value) for value in range(count))


def finished(text: str) -> int:
    """How many factorisations have their line in an output, complete or truncated."""
    return len(_RESULT_ROW.findall(text.partition(BEGIN)[2]))


def read(output: Path) -> Result:
    """Parses an output file, complete or truncated."""
    text = output.read_text(errors="replace") if output.exists() else ""
    hpl = text.partition(BEGIN)[2]
    passed, failed = _PASSED.search(hpl), _FAILED.search(hpl)
    return Result(
        passed=int(passed[1]) if passed else 0,
        failed=int(failed[1]) if failed else -1,
        times=tuple(float(row[1]) for row in _RESULT_ROW.findall(hpl)),
        finished=END in hpl,
        b_eff={
            ours: float(match[1]) * unit
            for ours, (theirs, unit) in _B_EFF.items()
            if (match := re.search(rf"^{theirs}=([\d.e+-]+)$", hpl, re.MULTILINE))
        },
    )
