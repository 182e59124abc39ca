"""`packing`: a job that begins spread over two sites, of which one gets room while it runs. Factors: program, kind of
nodes, and who packs it: nobody, the daemon by its measurements, a person at once, or the placement from the beginning.
The last two are the oracle: the result of a balancer with perfect knowledge.

Invariants: each run begins with clusters made anew in the same places; the daemon balances in its runs only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.base.paths import native_program
from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import median
from wherry.lab.study import analysis, npb_counts, sites, workloads
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Combination, Factor, Level, RunFailed, Value
from wherry.lab.study.requirements import LEAST_VM_MEMORY, vms_are_emulated, why_no_vms
from wherry.lab.study.results import Results
from wherry.lab.study.settings import BYTES, LONGEST_WAIT, NAMES, NPB_CLASSES, SECONDS, Setting
from wherry.lab.study.testbed import ClusterShape, RunningJob, Testbed
from wherry.model.records import Phase

_CONTAINERS, _VMS = "container", "vm"
STAY, DAEMON, HAND, PACKED = "stay", "daemon", "hand", "packed"
_CLASSES = {
    name: Setting(f"{name}.class", f"problem class of {name.upper()}", full, quick, choices=NPB_CLASSES)
    for name, full, quick in (("cg", "B", "A"), ("lu", "B", "W"), ("ep", "C", "A"), ("is", "B", "A"), ("bt", "A", "W"))
}
_EMULATED = {
    name: Setting(f"vm.{name}.class", f"problem class of {name.upper()} on VM nodes without KVM", size, size,
                  choices=NPB_CLASSES)
    for name, size in (("cg", "S"), ("ep", "W"))
}  # fmt: skip
"""Programs on VM nodes without KVM: with the largest gain, and without a gain."""
_QUICK = {"cg": (STAY, DAEMON, HAND, PACKED), "ep": (STAY, DAEMON)}
"""The packers, by program, with --quick."""
PROGRAMS = Setting(
    "programs", "programs that run", ",".join(_CLASSES), ",".join(_QUICK), unit=NAMES, choices=tuple(_CLASSES)
)
NODES = Setting("nodes", "nodes of the job at each site; as many ranks on each as one", 2, 2, most=64)
VM_NODES = Setting("vm.nodes", "nodes of the job at each site, VM nodes without KVM", 1, 1, most=16)
VM_AFTER = Setting(
    "vm.room.after",
    "from the job's begin until room appears, VM nodes without KVM",
    3.0,
    3.0,
    unit=SECONDS,
    least=0,
    most=LONGEST_WAIT,
)
AFTER = Setting(
    "room.after", "from the job's begin until room appears", 10.0, 2.0, unit=SECONDS, least=0, most=LONGEST_WAIT
)
LATENCY = replace(sites.LATENCY, quick=0.05)
MEMORY = Setting(
    "node.memory", "memory of a node", 320 << 20, 320 << 20, unit=BYTES, least=LEAST_VM_MEMORY, most=1 << 40
)
_TIME_LIMIT = 3600.0


class Packing(Study):
    """Design, runs and report of the study."""

    settings = (
        PROGRAMS,
        *_CLASSES.values(),
        *(NODES, MEMORY, AFTER, LATENCY, sites.MBITS),
        *_EMULATED.values(),
        *(VM_NODES, VM_AFTER),
    )

    name = "packing"
    why_not_on_own_hosts = (
        "it moves nodes from site to site, and between machines with two kernels a move is refused (docs/hosts.md)"
    )
    title = "A job that begins spread, and room that appears"
    question = "What does the daemon win by moving a running job together, beside staying and beside an oracle?"
    validity_checks = (
        "NPB's verification succeeds; a job that was to be moved by hand was moved before it ended, and a job that "
        "was to stay was not.",
    )
    duration = ("three hours", "three to four minutes")
    repetitions = 5
    quick_repetitions = 1
    warmups = 0
    shows = (
        "Total times, moves included, of CG, LU, EP, IS and BT that stay spread, that the daemon may move by its own "
        "measurements and rule, that are moved at once when there is room, and that have the room from the beginning. "
        "The difference of the daemon and the hand is the cost of looking and of the moves that the rule leaves out.",
    )
    limitations = (
        "All hosts share this machine's CPUs: packing takes no processor away, and a second site gives none. So the "
        "gain of a second site for EP is not shown; multi-site shows it.",
        "A program that ends before there was room shows nothing: choose its class and room.after for the machine.",
        "Without KVM machines have CG and EP of small classes on two nodes: that the daemon and a hand pack them, too, "
        "and no times of machines.",
    )

    def require_compatible_settings(self) -> None:
        there = [name for name in self.value(PROGRAMS).split(",") if not self.quick or name in _QUICK]
        self._require_ranks(NODES, {name: _CLASSES[name] for name in there})
        self._require_ranks(VM_NODES, {name: size for name, size in _EMULATED.items() if name in there})

    def _require_ranks(self, setting: Setting[int], programs: Mapping[str, Setting[str]]) -> None:
        """Refused (USAGE) for nodes on which one of the programs has no number of ranks that it runs on."""

        def refusing(nodes: int) -> list[str]:
            found = programs.items()
            return [name.upper() for name, one in found if not npb_counts.takes(name, 2 * nodes, self.value(one))]

        nodes = self.value(setting)
        if left := refusing(nodes):
            right = [number for number in range(1, int(setting.most) + 1) if not refusing(number)]
            near = min(right, key=lambda number: abs(number - nodes))
            what = f"{setting.name}={nodes} is not valid"
            why = f"{', '.join(left)} does not run on {2 * nodes} ranks; it is one of {', '.join(map(str, right))}"
            raise Refused(Code.USAGE, what, why, f"wherry study run {self.name} --set {setting.name}={near}")

    def factors(self) -> Sequence[Factor]:
        programs = [
            Level(
                name,
                f"NPB {name.upper()}, class {self.value(size)}",
                "not with --quick" if self.quick and name not in _QUICK else "",
            )
            for name, size in _CLASSES.items()
        ]
        sizes = ", ".join(f"{name.upper()} {self.value(size)}" for name, size in _EMULATED.items())
        emulated = f", emulated: {sizes}, {2 * self.value(VM_NODES)} nodes" if self._emulated else ""
        kinds = (
            Level(_CONTAINERS, "container nodes"),
            Level(_VMS, f"VM nodes{emulated}", why_no_vms(self.unavailable, self.quick, moved=True)),
        )
        who = (
            Level(STAY, "nobody: it stays spread"),
            Level(DAEMON, "the daemon, when it finds that it pays"),
            Level(HAND, "by hand, as soon as there is room"),
            Level(PACKED, "placed together from the beginning"),
        )
        return [
            Factor("program", "what runs", self.chosen(PROGRAMS, programs)),
            Factor("kind", "the nodes", kinds),
            Factor("who", "mover of the job", who),
        ]

    def combinations(self) -> Sequence[Combination]:
        programs, kinds, whos = (factor.measured() for factor in self.factors())
        return [
            Combination.of(program=name, kind=kind, who=who)
            for name in programs
            for kind in kinds
            for who in (_QUICK[name] if self.quick else whos)
            if kind == _CONTAINERS or not self._emulated or name in _EMULATED
        ]

    @property
    def _emulated(self) -> bool:
        return vms_are_emulated(self.unavailable)

    def _small(self, kind: str) -> bool:
        """Whether the nodes are emulated machines, which have sizes of their own."""
        return kind == _VMS and self._emulated

    def nodes(self, kind: str) -> int:
        """Those of the job at each site."""
        return self.value(VM_NODES if self._small(kind) else NODES)

    def _fabric(self, kind: str) -> Mapping[str, Any]:
        """Two sites, each with room for the whole job: twice as many nodes as it has there at first."""
        memory = MEMORY.shown(max(4 << 30, 8 * self.value(MEMORY)))
        return {
            "kind": "fabric",
            "version": 1,
            "name": "packing",
            "sites": [{"name": "a"}, {"name": "b"}],
            "hosts": [
                {"name": name, "site": name[0], "cores": 2, "memory": memory}
                for site in "ab"
                for name in self._at(site, kind)
            ],
            "links": sites.links(2, **sites.figures(self.value(sites.MBITS), self.value(LATENCY))),
        }

    def _at(self, site: str, kind: str) -> tuple[str, ...]:
        return tuple(f"{site}{number}" for number in range(1, self.nodes(kind) + 1))

    def measure(self, testbed: Testbed, combination: Combination, directory: Path) -> list[Value]:
        who, kind = combination["who"], combination["kind"]
        nic, ranks = "virtio" if kind == _VMS else "", 2 * self.nodes(kind)
        testbed.remove_clusters(["job", "guesta", "guestb"])  # hosts are other ones for other nodes
        testbed.use_fabric(self._fabric(kind))
        near, far, memory = self._at("a", kind), self._at("b", kind), MEMORY.shown(self.value(MEMORY))
        job_shape = (
            ClusterShape("job", ranks, near, memory=memory, spread="pack", nic=nic)
            if who == PACKED
            else ClusterShape("job", ranks, (*near, *far), memory=memory, spread="site", nic=nic)
        )
        try:
            testbed.ensure_cluster(job_shape)
            for site, hosts in (("a", near), ("b", far)):
                if who != PACKED or site == "b":
                    testbed.ensure_cluster(ClusterShape(f"guest{site}", len(hosts), hosts, memory="32MiB"))
            return self._run(testbed, combination, job_shape, directory)
        finally:
            try:
                testbed.client.auto_balance(False)
            finally:
                testbed.remove_clusters(["job", "guesta"])

    def _run(self, testbed: Testbed, combination: Combination, shape: ClusterShape, directory: Path) -> list[Value]:
        client, who, name = testbed.client, combination["who"], combination["program"]
        sizes = _EMULATED if self._small(combination["kind"]) else _CLASSES
        argv = [str(native_program(f"npb-{name}-openmpi")), self.value(sizes[name])]
        moved_before = len(client.moves())
        client.auto_balance(who == DAEMON)
        env = workloads.npb_environment(shape)
        job = testbed.start_job(shape, argv, shape.nodes, directory, "openmpi", env)
        try:
            if who != PACKED:
                self._make_room(testbed, job, who, combination["kind"])
        except BaseException:
            job.cancel()
            raise
        seconds = workloads.verified_seconds(job.wait(_TIME_LIMIT))
        record = client.job(job.job.id)
        began, ended = record.started or 0.0, record.ended or 0.0
        moves = [move for move in client.moves()[moved_before:] if move.phase == Phase.DONE]
        if who in (STAY, PACKED) and moves:
            raise RunFailed("a node was moved, which nobody had asked for")
        if who == HAND and (
            len(moves) < self.nodes(combination["kind"]) or any((move.ended or ended) >= ended for move in moves)
        ):
            raise RunFailed("the program ended before its nodes were together; a larger class is needed")
        together = len({node.host[0] for node in client.nodes(shape.name)}) == 1
        packed = max((move.ended or began) - began for move in moves) if moves and together else None
        return [
            seconds,
            Value("total", ended - began, "s"),
            Value("moves", len(moves), ""),
            Value("frozen", sum(move.downtime or 0.0 for move in moves), "s"),
            *([Value("packed_after", packed, "s")] if packed is not None else []),
        ]

    def _make_room(self, testbed: Testbed, job: RunningJob, who: str, kind: str) -> None:
        """Frees the first site when its time has come, and moves the job there if that is done by hand."""
        after = self.value(VM_AFTER if self._small(kind) else AFTER)
        time.sleep(after)
        if job.has_ended():
            raise RunFailed(f"the program ended within {after:g} s, before there was room")
        testbed.remove_cluster("guesta")
        if who == HAND:
            far = [node for node in testbed.client.nodes("job") if node.host.startswith("b")]
            started = [
                testbed.client.begin_move(node.name, to) for node, to in zip(far, self._at("a", kind), strict=False)
            ]
            for operation in started:
                testbed.client.moved(testbed.client.wait(operation.id, seconds=_TIME_LIMIT))

    def page(self, results: Results) -> Page:
        page = Page(tables=[self._times(results)])
        groups: dict[str, dict[str, list[float]]] = {}
        for combination in self.combinations():
            if total := results.values(combination, "total"):
                kind = "" if combination["kind"] == _CONTAINERS else ", VMs"
                groups.setdefault(f"{combination['program'].upper()}{kind}", {})[combination["who"]] = total
        if groups:
            page.figures.append(("Total time of the job, moves included, by who moves it.", figures.bars(groups, "s")))
        small = f" ({self.value(VM_AFTER):g} s on emulated VM nodes)" if self._small(_VMS) else ""
        page.remarks.append(
            f"Room appears {self.value(AFTER):g} s after the job began{small}; until then `hand` and `daemon` are "
            "spread as `stay` is all the time, and `packed` never is. `together after` counts from the job's begin to "
            "the last move's end, where all nodes were at one site then."
        )
        return page

    def _times(self, results: Results) -> Table:
        rows = []
        programs, kinds, whos = self.factors()
        for combination in self.combinations():
            total = results.values(combination, "total")
            if not total:
                continue
            base = Combination.of(program=combination["program"], kind=combination["kind"], who=STAY)
            stayed = results.values(base, "total")
            over = analysis.ratio_of_runs(total, stayed) if combination["who"] != STAY else None
            tested = analysis.significance_text(total, stayed) if over else ""
            after, moves = (results.values(combination, metric) for metric in ("packed_after", "moves"))
            row = (
                programs.label(combination["program"]),
                kinds.label(combination["kind"]),
                whos.label(combination["who"]),
                median(total).text(),
                over.text() if over else "",
                tested,
                f"{median(moves).value:g}" if moves else "-",
                median(after).text() if after else "-",
            )
            rows.append(row)
        head = ("program", "nodes", "moved by", "total, s", ": stayed", "test", "moves", "together after, s")
        return Table("Total times", head, rows, main=True)
