"""CPU time of parts that join two sites while a program runs: the gateways of their VPN, the link's emulator, and the
kernel's own work for the network.

Invariants: processes are found by the files that record them in the instance's directory of links, so no other process
is counted; a sample reads a few files of /proc ten times a second, some ten microseconds each, so it does not disturb
the watched processes. A share is of one CPU: a gateway with one thread is saturated at 1.
"""

from __future__ import annotations

import os
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import NamedTuple, Self

from wherry.base.paths import instance
from wherry.client.client import Chunk
from wherry.lab.study.levels import Value

GATEWAY, LINK, SOFTIRQ = "gateway", "link", "softirq"
"""Metrics: the busiest gateway of the VPN, the link's emulator, the machine's soft interrupts; in CPUs."""
BINS = (1 << 10, 64 << 10, 1 << 20, 1 << 30)
"""Largest message of each class of sizes by which `GATEWAY` is reported, in bytes."""
_PERIOD = 0.1
_SHORTEST = 0.2
"""Seconds below which a class of sizes has no share: it would be of one sample."""
_PROGRAMS = {"openvpn": GATEWAY, "wireguard-go": GATEWAY, "vpnserver": GATEWAY, "wherry-link": LINK}
"""Names of processes -> metric. The kernel's WireGuard has none; its work is in `SOFTIRQ`."""
_LINE = re.compile(r" *\d+: +(\d+) bytes +\d+ times --> .* in +[\d.]+ usec")


class Window(NamedTuple):
    """The time in which NetPIPE sent messages of one size."""

    size: int
    begin: float
    end: float


class Sample(NamedTuple):
    """CPU seconds that each process, named by metric and process id, and soft interrupts have used so far."""

    moment: float
    used: Mapping[tuple[str, int], float]


class GatewayWatch:
    """Samples from `with` to its end."""

    def __init__(self, links: Path | None = None) -> None:
        self._processes = dict(_recorded(links or instance().run / "links"))
        self._threads: dict[int, dict[str, float]] = {pid: {} for pid in self._processes}
        self.samples: list[Sample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateways", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.samples.append(Sample(time.time(), self._read()))
            if self._ended.wait(_PERIOD):
                return

    def _read(self) -> dict[tuple[str, int], float]:
        """CPU seconds so far. A thread or process that has ended keeps its last value."""
        used = {(SOFTIRQ, 0): _softirq_seconds()}
        for pid, metric in self._processes.items():
            threads = self._threads[pid]
            for file in glob(f"/proc/{pid}/task/*/schedstat"):
                threads[file] = _thread_seconds(file, threads.get(file, 0.0))
            used[metric, pid] = sum(threads.values())
        return used


def values(samples: Sequence[Sample], windows: Sequence[Window]) -> list[Value]:
    """Shares of a CPU: of the busiest gateway by class of sizes (`x`: its largest message), of the link's emulator and
    of soft interrupts over all of them. Only of parts that ran."""
    found = [
        Value(GATEWAY, share, "CPUs", float(largest))
        for smallest, largest in zip((0, *BINS), BINS, strict=False)
        if (share := _share(samples, [one for one in windows if smallest < one.size <= largest], GATEWAY)) is not None
    ]
    for metric in (LINK, SOFTIRQ):
        if (share := _share(samples, windows, metric)) is not None:
            found.append(Value(metric, share, "CPUs"))
    return found


def windows(chunks: Iterable[Chunk]) -> list[Window]:
    """When NetPIPE sent which size, from its progress output, which has a line at each size's end."""
    texts: dict[str, str] = {}
    found: list[Window] = []
    began: float | None = None
    for stream, moment, data in chunks:
        began = moment if began is None else began
        *lines, texts[stream] = (texts.get(stream, "") + data.decode(errors="replace")).split("\n")
        for line in lines:
            if match := _LINE.match(line):
                found.append(Window(int(match[1]), began, moment))
                began = moment
    return found


def _share(samples: Sequence[Sample], among: Sequence[Window], metric: str) -> float | None:
    """Of the busiest process; None if there is none, or if the windows are too short."""
    seconds = sum(one.end - one.begin for one in among)
    keys = {key for sample in samples for key in sample.used if key[0] == metric}
    if seconds < _SHORTEST or not keys:
        return None
    moments = [sample.moment for sample in samples]
    return max(
        sum(_used(samples, moments, key, one.end) - _used(samples, moments, key, one.begin) for one in among) / seconds
        for key in keys
    )


def _used(samples: Sequence[Sample], moments: Sequence[float], key: tuple[str, int], at: float) -> float:
    """CPU seconds that were used at a moment, between two samples in proportion."""
    right = min(max(bisect_right(moments, at), 1), len(moments) - 1)
    before, after = samples[right - 1], samples[right]
    low, high = before.used.get(key, 0.0), after.used.get(key, before.used.get(key, 0.0))
    span = after.moment - before.moment
    return low + (high - low) * min(max((at - before.moment) / span, 0.0), 1.0) if span > 0 else high


def _recorded(links: Path) -> Iterable[tuple[int, str]]:
    """Process id -> metric of the processes that join sites."""
    for file in links.rglob("*.pid"):
        try:
            pid = int(file.read_text().split()[0])
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError, IndexError):
            continue
        if name in _PROGRAMS:
            yield pid, _PROGRAMS[name]


def _thread_seconds(schedstat: str, last: float) -> float:
    try:
        return int(Path(schedstat).read_text().split()[0]) * 1e-9
    except (OSError, ValueError, IndexError):  # it has ended
        return last


def _softirq_seconds() -> float:
    with Path("/proc/stat").open() as file:
        return int(file.readline().split()[7]) / os.sysconf("SC_CLK_TCK")
