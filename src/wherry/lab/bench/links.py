"""`links`: accuracy of the latency and bandwidth of an emulated link."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wherry.base.units import parse_duration, parse_rate
from wherry.client import Client
from wherry.lab.bench.definition import Benchmark, Comparison, Goal, Levels, Row
from wherry.lab.bench.samples import Samples

_FABRIC = {
    "kind": "fabric",
    "version": 1,
    "name": "linkbench",
    "sites": [{"name": "a"}, {"name": "b"}],
    "hosts": [{"name": f"{site}1", "site": site, "cores": 1, "memory": "256MiB"} for site in "ab"],
    "links": [{"between": ["a", "b"], "latency": "0ms"}],
}
_LATENCIES = ("0ms", "1ms", "5ms", "10ms", "50ms")
_BANDWIDTHS = (("10Mbit/s", "0ms"), ("100Mbit/s", "0ms"), ("1Gbit/s", "0ms"), ("1Gbit/s", "10ms"))
_MAX_LATE, _LATE_SHARE = 0.2e-3, 0.03
"""Goal for a latency's excess: the larger of an absolute bound in seconds and a share of the latency."""
_EXACT = Goal(at_least=0.95, at_most=1.05)
_CORES = Goal(at_most=1.0)


@dataclass(frozen=True)
class Links(Benchmark):
    """Measured between the link's two hosts as by `wherry site link --measure`: timed datagrams and a saturating TCP
    stream. A latency sample is the median of several datagrams. A bandwidth run gives one sample for each direction,
    with the CPU cores that the emulator used.
    """

    name = "links"
    compares = "Latency (ms) and bandwidth (Mbit/s) of a link, beside the declared values"
    duration = ("three minutes", "a minute")
    columns = ("measured", "declared")

    def levels(self) -> Sequence[Levels]:
        delays = [{"latency": latency, "bandwidth": "40Gbit/s"} for latency in _LATENCIES]
        return [*delays, *({"latency": latency, "bandwidth": bandwidth} for bandwidth, latency in _BANDWIDTHS)]

    def prepare(self, client: Client) -> None:
        client.wait(client.fabric_up(_FABRIC, "the benchmark's fabric").id)

    def measure(self, client: Client, levels: Levels, directory: Path) -> Iterable[Row]:
        client.wait(client.set_link("a", "b", dict(levels)).id)
        if levels["bandwidth"] == "40Gbit/s":
            seconds = client.links()[0]["measured"]["latency"]
            yield {"ms": 1e3 * seconds, "late": 1e3 * (seconds - parse_duration(levels["latency"]))}
            return
        began, before = time.monotonic(), client.links()[0]["cpu"]
        measured = client.links(measure=True)[0]["measured"]
        cores = (client.links()[0]["cpu"] - before) / (time.monotonic() - began)
        for direction in ("there", "back"):
            yield {"mbit": measured[direction] / 1e6, "cores": cores}

    def comparisons(self, samples: Samples) -> Sequence[Comparison]:
        rows = []
        for latency in _LATENCIES:
            bound = 1e3 * max(_MAX_LATE, _LATE_SHARE * parse_duration(latency))
            measured = samples.values("late", latency=latency, bandwidth="40Gbit/s")
            rows.append(Comparison(f"{latency}: late by ms", measured, goal=Goal(at_most=bound)))
        for bandwidth, latency in _BANDWIDTHS:
            where = {"latency": latency, "bandwidth": bandwidth}
            declared = [parse_rate(bandwidth) / 1e6]
            rates = samples.values("mbit", **where)
            rows.append(Comparison(f"{bandwidth} at {latency}", rates, declared * len(rates), _EXACT))
            rows.append(Comparison(f"{bandwidth} at {latency}: cores", samples.values("cores", **where), goal=_CORES))
        return rows
