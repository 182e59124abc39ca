"""How exactly links keep their figures: `python -m wherry.lab.linkbench`, as root.

One link is given a latency, or a bandwidth at some latency, and measured from its two hosts, as `wherry site link
--measure` does: by timed datagrams, and by TCP that fills it. Printed: declared, median, the error, and the cores that
the emulator took, idle moments between two measurements included; with `--json` one document with every sample and the
machine. The fabric is an instance of its own and is removed at the end.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from wherry.base.units import format_duration, format_rate, parse_duration, parse_rate
from wherry.client import Client
from wherry.lab.bench.session import short_sitting
from wherry.lab.demo import print_table
from wherry.lab.environment import environment
from wherry.lab.report.page import Table

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
_PINGS, _FILLS = 5, 2
"""Samples of a latency, each the median of several datagrams; and of a bandwidth, each of both directions."""


def main(words: list[str]) -> None:
    """Measures everything and prints it."""
    as_json = "--json" in words
    with short_sitting("linkbnch") as client:
        client.wait(client.fabric_up(_FABRIC, "the bench's fabric").id)
        latencies = [_latency(client, text) for text in _LATENCIES]
        fills = [_bandwidth(client, *texts) for texts in _BANDWIDTHS]
    if as_json:
        print(json.dumps({"environment": environment(), "latency": latencies, "bandwidth": fills}))
        return
    machine = environment()
    print(", ".join(f"{key} {machine[key]}" for key in ("cpu", "cpus", "kernel", "load")))
    rows: list[tuple[Any, ...]] = [
        (
            d["declared"],
            format_duration(d["median"]),
            f"{(d['median'] - d['seconds']) * 1e3:+.3f} ms",
            len(d["samples"]),
        )
        for d in latencies
    ]
    print_table(Table("Latency, one way", ("declared", "median", "error", "samples"), rows))
    rows = [
        (f"{d['declared']} at {d['latency']}", format_rate(d["median"]), f"{d['median'] / d['rate'] - 1:+.1%}",
         len(d["samples"]), f"{d['cores']:.2f}")
        for d in fills
    ]  # fmt: skip
    print_table(Table("Bandwidth on the wire", ("declared", "median", "error", "samples", "emulator's cores"), rows))


def _latency(client: Client, text: str) -> dict[str, Any]:
    client.wait(client.set_link("a", "b", {"latency": text, "bandwidth": "40Gbit/s"}).id)
    samples = [client.links()[0]["measured"]["latency"] for _ in range(_PINGS)]
    return {"declared": text, "seconds": parse_duration(text), "median": statistics.median(samples), "samples": samples}


def _bandwidth(client: Client, text: str, latency: str) -> dict[str, Any]:
    client.wait(client.set_link("a", "b", {"latency": latency, "bandwidth": text}).id)
    samples, began, before = [], time.monotonic(), client.links()[0]["cpu"]
    for _ in range(_FILLS):
        measured = client.links(measure=True)[0]["measured"]
        samples += [measured["there"], measured["back"]]
    cores = (client.links()[0]["cpu"] - before) / (time.monotonic() - began)
    return {
        "declared": text, "latency": latency, "rate": parse_rate(text), "median": statistics.median(samples),
        "samples": samples, "cores": cores,
    }  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
