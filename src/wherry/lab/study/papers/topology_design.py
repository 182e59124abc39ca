"""The factors of `topology`: programs, links, where the ranks are, and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from wherry.lab.applications import APPLICATIONS
from wherry.lab.study import npb_counts, sites
from wherry.lab.study.design import Design
from wherry.lab.study.levels import Combination, Factor, Level
from wherry.lab.study.settings import BYTES, LONGEST_WAIT, NAMES, NPB_CLASSES, NUMBERS, SECONDS, Setting
from wherry.lab.study.testbed import ClusterShape
from wherry.model import balance

PACKED, SPREAD, BRIEF, BY_SITES, ONE = "packed", "spread", "brief", "by-sites", "one"
AT_ONE_SITE = (PACKED, ONE)
QUEENS, SHALLOW, LAMMPS = "queens", "shallow", "lammps"
CLASSES: Mapping[str, Setting[str]] = {
    name: Setting(f"{name}.class", f"problem class of {name.upper()}", full, quick, paper, choices=NPB_CLASSES)
    for name, full, quick, paper in (
        ("cg", "B", "A", "B"),
        ("ep", "C", "C", "B"),
        ("ft", "B", "B", None),
        ("is", "C", "C", None),
        ("lu", "B", "B", "B"),
        ("mg", "C", "C", None),
    )
}
PROGRAM_NAMES = (*CLASSES, QUEENS, SHALLOW, LAMMPS)
COLLECTIVE = ("cg", "ft", "is", LAMMPS)
"""Programs that also run with collectives by sites, and beside one site."""
VPN = "vpn"
"""The link with the latency and bandwidth of the paper's VPN."""

PROGRAMS = Setting("programs", "programs that run", ",".join(PROGRAM_NAMES), "cg,ep", unit=NAMES, choices=PROGRAM_NAMES)
RANKS = Setting(
    "ranks",
    "ranks, one on each node, half of them at each site",
    4,
    4,
    paper=64,
    least=2,
    most=64,
    allowed=npb_counts.POWERS[1:7],
)
FAST = Setting("host.cpus", "share of a processor that a fast host has", 0.4, 0.4, least=0.2, most=1)
SLOW = Setting(
    "packed.cpus",
    "share of a processor that a slow host has, on which half of the ranks are when packed",
    0.2,
    0.2,
    least=0.2,
    most=1,
)
LATENCIES = Setting(
    "latencies", "latencies of the links in ms, one way, beside that of the VPN", "2,10", "10", unit=NUMBERS, most=1000
)
VPN_LATENCY = Setting(
    "vpn.latency", "latency of the paper's VPN, one way", 0.00015, 0.00015, unit=SECONDS, least=0, most=1
)
VPN_MBITS = Setting("vpn.mbits", "bandwidth of the paper's VPN in Mbit/s", 290, 290, most=100_000)
MEMORY = Setting("node.memory", "memory of a node", 1536 << 20, 1536 << 20, unit=BYTES, least=64 << 20, most=1 << 40)
AFTER = Setting(
    "brief.after", "from the begin of a brief run until it is measured", 6.0, 1.5, unit=SECONDS, least=0,
    most=LONGEST_WAIT,
)  # fmt: skip
MEASURED = Setting(
    "brief.seconds", "how long it is measured", 3.0, 3.0, unit=SECONDS, least=0.5, most=balance.MAX_MEASUREMENT
)
REMAINING = Setting(
    "remaining", "the given run time of the job that is decided on", 3600.0, 3600.0, unit=SECONDS, least=1, most=1e7
)
TIE = Setting("tie", "part by which two times may differ and are a tie", 0.05, 0.1, least=0, most=0.5)
QUEENS_N = Setting("queens.n", "queens, on a board of as many rows", 17, 16, least=4, most=18)
SHALLOW_N = Setting("shallow.n", "cells in a row of the shallow-water model", 512, 512, most=32_768)
SHALLOW_STEPS = Setting("shallow.steps", "its steps", 4_000, 4_000, most=10**9)
LAMMPS_STEPS = Setting("lammps.steps", "steps of LAMMPS", 30_000, 30_000, least=100, most=10**8)


class Hosts(NamedTuple):
    """Hosts by their kind: fast ones at the first site, more of them, slow ones there, and fast ones at the other."""

    near: tuple[str, ...]
    spare: tuple[str, ...]
    slow: tuple[str, ...]
    far: tuple[str, ...]


def cell(program: str, link: str, where: str) -> Combination:
    """A combination."""
    return Combination.of(program=program, link=link, where=where)


class TopologyDesign(Design):
    """Factors, combinations, hosts and clusters."""

    settings = (
        PROGRAMS,
        *CLASSES.values(),
        *(QUEENS_N, SHALLOW_N, SHALLOW_STEPS, LAMMPS_STEPS),
        *(RANKS, FAST, SLOW, MEMORY, VPN_LATENCY, VPN_MBITS, LATENCIES, sites.MBITS),
        *(AFTER, MEASURED, REMAINING, TIE),
    )
    options: ClassVar[Mapping[str, tuple[Setting[Any], ...]]] = {"ranks": (RANKS,)}

    def factors(self) -> Sequence[Factor]:
        programs = tuple(Level(name, self._text(name), self._why_not(name)) for name in PROGRAM_NAMES)
        mbits = self.value(sites.MBITS)
        vpn = f"{1e3 * self.value(VPN_LATENCY):g} ms, {self.value(VPN_MBITS)} Mbit/s, as the paper's VPN"
        links = (
            Level(VPN, vpn, "not with --quick" if self.quick else ""),
            *(Level(ms, f"{ms} ms, {mbits} Mbit/s") for ms in self.numbers(LATENCIES)),
        )
        fast, slow = f"{self.value(FAST):g} of a processor", f"{self.value(SLOW):g}"
        carried = sites.why_not_carried(self.value(RANKS), self.value(FAST), self.unavailable)
        alone = "" if self.value(RANKS) > 2 else "with one rank at each site collectives are the MPI's own"
        where = (
            Level(PACKED, f"at one site, half of them on hosts with {slow} instead of {fast}", carried),
            Level(SPREAD, f"over two sites, each on a host with {fast}", carried),
            Level(BRIEF, "as spread, measured for a moment, and ended: Wherry's decision", carried),
            Level(BY_SITES, "as spread, with --site-collectives", carried or alone),
            Level(ONE, f"at one site, each on a host with {fast}", carried),
        )
        return [
            Factor("program", "what runs", programs),
            Factor("link", "the link, one way", links),
            Factor("where", "where the ranks are", where),
        ]

    def _text(self, program: str) -> str:
        others = {
            QUEENS: f"N-Queens, N = {self.value(QUEENS_N)}",
            SHALLOW: f"shallow water, {self.value(SHALLOW_N)} cells, {self.value(SHALLOW_STEPS)} steps",
            LAMMPS: f"{APPLICATIONS[LAMMPS].text}, {self.value(LAMMPS_STEPS)} steps",
        }
        return others.get(program) or f"NPB {program.upper()}, class {self.value(CLASSES[program])}"

    def _why_not(self, program: str) -> str:
        """Why a program is left out; empty if it is not."""
        if program not in self.value(PROGRAMS).split(","):
            return "not with --quick" if self.quick and PROGRAMS.name not in self.given else "not among `programs`"
        if program in CLASSES and not npb_counts.takes(
            program, self.value(RANKS), size := self.value(CLASSES[program])
        ):
            return f"class {size} has no work for {self.value(RANKS)} ranks"
        return self.unavailable.get(program, "")

    def combinations(self) -> Sequence[Combination]:
        programs, links, wheres = (factor.measured() for factor in self.factors())
        return [
            cell(program, link, where)
            for program in programs
            for link in links
            for where in wheres
            if where in (PACKED, SPREAD, BRIEF) or program in COLLECTIVE
            if where not in AT_ONE_SITE or link == links[0]
        ]

    def runs_of(self, program: str, link: str, where: str) -> Combination:
        """The combination whose runs are those of a cell: at one site nothing crosses the link, so it is measured with
        the first one for all."""
        return cell(program, self.factors()[1].measured()[0] if where in AT_ONE_SITE else link, where)

    def hosts(self) -> Hosts:
        """As many of each kind as half of the ranks."""
        kinds = ("a", "ax", "as", "b")
        return Hosts(*(tuple(f"{kind}{number}" for number in range(1, self.value(RANKS) // 2 + 1)) for kind in kinds))

    def fabric(self, link: str) -> Mapping[str, Any]:
        """Two sites with this link. A host has room for one node."""
        hosts, memory = self.hosts(), max(1 << 30, self.value(MEMORY))
        if link == VPN:
            joined = sites.figures(self.value(VPN_MBITS), self.value(VPN_LATENCY))
        else:
            joined = sites.figures(self.value(sites.MBITS), int(link) / 1e3)
        return {
            "kind": "fabric",
            "version": 1,
            "name": "topology",
            "sites": [{"name": "a"}, {"name": "b"}],
            "hosts": [
                {
                    "name": name,
                    "site": name[0],
                    "cores": 1,
                    "speed": self.value(SLOW if name in hosts.slow else FAST),
                    "memory": f"{memory}B",
                }
                for kind in hosts
                for name in kind
            ],
            "links": sites.links(2, **joined),
        }

    def shape(self, where: str) -> ClusterShape:
        """The cluster of a place. A spread one may be packed: the slow hosts are its, too."""
        hosts, ranks, memory = self.hosts(), self.value(RANKS), MEMORY.shown(self.value(MEMORY))
        if where == PACKED:
            return ClusterShape("packed", ranks, (*hosts.near, *hosts.slow), memory=memory)
        if where == ONE:
            return ClusterShape("one", ranks, (*hosts.near, *hosts.spare), memory=memory)
        allowed = (*hosts.near, *hosts.far, *hosts.slow)
        return ClusterShape("apart", ranks, allowed, memory=memory, spread="site")

    def places(self, where: str) -> frozenset[str]:
        """The hosts that the nodes are on."""
        shape, hosts = self.shape(where), self.hosts()
        return frozenset(shape.hosts) - (frozenset(hosts.slow) if shape.spread == "site" else frozenset())
