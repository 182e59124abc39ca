"""`link-moves`: live moves over a link between sites, compared with moves inside a site and with a bandwidth bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wherry.base.paths import native_program
from wherry.base.units import parse_duration, parse_rate
from wherry.client import Client, identity
from wherry.lab.bench.definition import Benchmark, Comparison, Goal, Levels, Row
from wherry.lab.bench.jobs import await_output
from wherry.lab.bench.samples import Samples
from wherry.lab.report.statistics import median
from wherry.model.overlay import Overlay

_ITINERARY = ("b2", "a2", "a3", "b1")
"""The node's destinations in order; it starts at b1."""
_SLACK, _ROUND_TRIPS = 1.25, 10
_JOB_SECONDS = 36_000


@dataclass(frozen=True)
class LinkMoves(Benchmark):
    """A node moves around four hosts while a ring of messages runs: inside a site, over the link, inside the other
    site, and back. So each run has two local moves and two over the link, alternating.
    """

    name = "link-moves"
    compares = (
        "Seconds of a move over a link, beside 1.25 x bytes / bandwidth + the downtime of a local move + 10 round trips"
    )
    duration = ("ten minutes", "two minutes")
    columns = ("over the link", "bound")
    quick_settings = {"memory": "16"}

    memory: str = "16,64,256"
    """MiB that each rank rewrites; several values are separated by commas."""
    latency: str = "10ms"
    """One-way latency of the link."""
    bandwidth: str = "1Gbit/s"
    overlay: Overlay = "none"

    def __post_init__(self) -> None:
        self.levels(), parse_duration(self.latency), parse_rate(self.bandwidth)

    def levels(self) -> Sequence[Levels]:
        return [{"memory": int(memory)} for memory in self.memory.split(",")]

    def prepare(self, client: Client) -> None:
        names = ("a1", "a2", "a3", "b1", "b2")
        link = {"latency": self.latency, "bandwidth": self.bandwidth, "overlay": self.overlay}
        fabric = {
            "kind": "fabric",
            "version": 1,
            "name": "link-moves",
            "sites": [{"name": "a"}, {"name": "b"}],
            "hosts": [{"name": name, "site": name[0], "cores": 2, "memory": "2GiB"} for name in names],
            "links": [{"between": ["a", "b"], **link}],
        }
        client.wait(client.fabric_up(fabric, "the benchmark's fabric").id)

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        memory, owner = levels["memory"], identity.process_owner(directory)
        spec = {"name": "far", "nodes": 2, "cpus": 1.0, "memory": f"{memory + 192}MiB", "hosts": ["a1", "b1"]}
        client.wait(client.up(spec, "the benchmark's cluster", owner).id)
        argv = [str(native_program("wherry-ring-openmpi")), "--seconds", str(_JOB_SECONDS), "--memory", str(memory)]
        job = client.run("far", argv, 2, owner=owner)
        await_output(client, job.id, b"iteration", 60.0)
        rows, host_now = list[Row](), "b1"
        for host in _ITINERARY:
            move = client.moved(client.wait(client.begin_move("far-1", host, parameters={"compress": "off"}).id))
            kind = "local" if host_now[0] == host[0] else "crossing"
            row = {"kind": kind, "bytes": move.bytes, "downtime": move.downtime, "total": move.total}
            rows.append({**row, "phases": move.phases, "rounds": len(move.rounds)})
            host_now = host
        client.cancel_job(job.id)
        local = median([row["downtime"] for row in rows if row["kind"] == "local"]).value
        return [{**row, "bound": self._bound(row["bytes"], local)} for row in rows]

    def _bound(self, size: float, local: float) -> float:
        """Upper bound for the seconds of a move over the link."""
        wire = _SLACK * 8 * size / parse_rate(self.bandwidth)
        return wire + local + _ROUND_TRIPS * 2 * parse_duration(self.latency)

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        rows = []
        for levels in self.levels():
            crossing = {**levels, "kind": "crossing"}
            for what in ("downtime", "total"):
                text = f"{levels['memory']} MiB, {what}"
                bound = samples.values("bound", **crossing)
                rows.append(Comparison(text, samples.values(what, **crossing), bound, Goal(at_most=1.0)))
                rows.append(Comparison(f"{text} of a local move", samples.values(what, **levels, kind="local")))
        return rows
