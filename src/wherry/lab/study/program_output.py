"""Parsers for the output of measuring programs. Output that is incomplete raises RunFailed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from wherry.lab.study.levels import RunFailed, Value

_RTT = re.compile(r"rtt min/avg/max/mdev = ([\d.]+)/([\d.]+)/([\d.]+)/([\d.]+) ms")
_RECEIVED = re.compile(r"(\d+) packets transmitted, (\d+) received")
_NETPIPE_LINE = re.compile(r"^ *\d+: +(\d+) bytes +\d+ times --> .* in +([\d.]+) usec", re.MULTILINE)
LATENCIES = ("mean", "median", "min", "p95", "max")


def json_lines(text: str) -> Iterator[dict[str, Any]]:
    """The JSON documents in a program's output, one on each line; other lines are skipped."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                raise RunFailed(f"the output is cut off: {line[:80]!r}") from None


def pingpong(text: str, sizes: int) -> list[Value]:
    """Latencies (half a round trip) by message size, from wherry-pingpong, which must print `sizes` lines."""
    lines = list(json_lines(text))
    if len(lines) != sizes:
        raise RunFailed(f"the ping-pong printed {len(lines)} sizes, {sizes} were asked for")
    if any(line["errors"] for line in lines):
        raise RunFailed("a message came back with wrong content")
    values = []
    for line in lines:
        values += [Value(f"latency_{name}", line[name], "s", line["bytes"]) for name in LATENCIES]
        values.append(Value("repetitions", line["repeat"], "", line["bytes"]))
    return values


def flood_ping(text: str, count: int) -> list[Value]:
    """Round-trip times from `ping -f -q`; no packet may be lost."""
    received, times = _RECEIVED.search(text), _RTT.search(text)
    if not received or not times:
        raise RunFailed("ping printed no round-trip times")
    if int(received[2]) != count:
        raise RunFailed(f"{count - int(received[2])} of {count} pings were lost")
    names = ("rtt_min", "rtt_mean", "rtt_max", "rtt_deviation")
    return [Value(name, float(times[i + 1]) * 1e-3, "s") for i, name in enumerate(names)]


def linpack(text: str) -> list[Value]:
    """Seconds of factorisation and solution from wherry-linpack, which checks the residual itself."""
    for line in json_lines(text):
        return [
            Value("factor", line["factor_seconds"], "s"),
            Value("solve", line["solve_seconds"], "s"),
            Value("flops", line["flops"], "1/s"),
        ]
    raise RunFailed("linpack printed no result")


def netpipe_progress(text: str) -> list[Value]:
    """As `netpipe`, but from NetPIPE's progress output, with fewer digits: for nodes whose files need not be here."""
    match = _NETPIPE_LINE.findall(text)
    if not match:
        raise RunFailed("NetPIPE printed no times")
    return [Value("latency_mean", float(microseconds) * 1e-6, "s", float(size)) for size, microseconds in match]


def netpipe(text: str) -> list[Value]:
    """Latencies by message size, from NetPIPE's output file: bytes, Mbps, seconds (half a round trip). The seconds are
    used, because Mbps overflow from 256 MiB on.
    """
    rows = [line.split() for line in text.splitlines()]
    if not rows or any(len(row) != 3 for row in rows):
        raise RunFailed("NetPIPE's output file is empty or cut off")
    return [Value("latency_mean", float(seconds), "s", float(size)) for size, _, seconds in rows]
