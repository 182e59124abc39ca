"""The cost of a message in events: interrupts, frames, switches, accesses to the card, system calls, bytes copied.

A ping-pong stops before and after the messages of each size, and both sides are counted: by the ranks inside, from
/proc of their system, and outside at each machine's QEMU. QEMU's trace points are on in a second job, because writing
their lines is a system call. The counts of an empty exchange outside are subtracted: the printing of the marks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path

from wherry.lab.study.levels import RunFailed, Value
from wherry.lab.study.machine_counters import Machine, card_events, machines, traced
from wherry.lab.study.program_output import json_lines
from wherry.lab.study.testbed import ClusterShape, RunningJob, Testbed, program

PREFIX = "count_"
"""Begin of the names of metrics."""
_PAUSE = 3
"""Seconds that the ranks pause for the counting outside."""
_FEW_ABOVE, _FEW = 1024, 10
_TIME_LIMIT = 900.0
_MARKS = ("begin", "end")
_QUEUES = ("kicks", "notified")
"""Events of queues that QEMU serves itself."""
Reading = Callable[[Machine], Mapping[str, float]]


def count(
    testbed: Testbed, cluster: ClusterShape | None, messages: int, sizes: Sequence[int], directory: Path
) -> list[Value]:
    """Events for each message, one way, both ends together, by `sizes` in bytes. Without a cluster: native, over
    loopback. `messages` are those of one size; large ones have fewer."""
    repeat = max(1, messages // 2)
    argv = [program("pingpong", "openmpi"), *(word for size in sizes for word in ("--only", str(size)))]
    argv += ["--repeat", str(repeat), "--warm", "10", "--above", str(_FEW_ABOVE), "--few", str(min(repeat, _FEW))]
    if cluster is None:
        done = testbed.run_native([*argv, "--count", "lo"], 2, directory, _TIME_LIMIT)
        return inside(done.require_success(), of_ranks={"own_switches"}, of_both={"frames", "bytes"})
    argv += ["--count", "eth0"]
    if not cluster.nic:
        done = testbed.run_on_cluster(cluster, argv, 2, directory, _TIME_LIMIT, "openmpi")
        return inside(done.require_success(), of_ranks={"own_switches", "frames", "bytes"})
    argv += ["--pause", str(_PAUSE)]
    those = machines(testbed, cluster)
    plain, traces = directory / "counted", directory / "traced"
    for place in (plain, traces):
        place.mkdir()
    text, outside = _observed(testbed, cluster, argv, plain, those, Machine.read, sizes)
    with traced(those):
        _, lengths = _observed(testbed, cluster, argv, traces, those, _log_length, sizes)
        found = {
            size: [_trace(cluster, machine, at) for machine, at in zip(those, lengths[size], strict=True)]
            for size in lengths
        }
    values = inside(text)
    sent = {value.x: value.value for value in values if value.metric == f"{PREFIX}messages"}
    values += _each(_differences(outside), sent)
    return values + _each(found, sent)


def inside(text: str, of_ranks: Set[str] | None = None, of_both: Set[str] = frozenset()) -> list[Value]:
    """Counts of the ranks' systems, from the ping-pong's lines. `of_ranks` are counted for each rank alone (None:
    all are), `of_both` are read by both ranks of one interface; others are of more than these ranks, and left out.
    """
    values = []
    for line in json_lines(text):
        if "counts" not in line:
            continue
        if line["errors"]:
            raise RunFailed("a message came back with wrong content")
        size, messages = line["bytes"], 2 * line["repeat"]
        values += [Value("latency_median", line["median"], "s", size), Value(f"{PREFIX}messages", messages, "", size)]
        values += [
            Value(f"{PREFIX}{name}", number / messages / (2 if name in of_both else 1), "1/message", size)
            for name, number in line["counts"].items()
            if number is not None and (of_ranks is None or name in of_ranks or name in of_both)
        ]
    if not values:
        raise RunFailed("the ping-pong printed no counts")
    return values


Readings = dict[int, list[tuple[Mapping[str, float], Mapping[str, float]]]]
"""Size of messages -> for each machine the counters before and after them."""


def _observed(
    testbed: Testbed,
    cluster: ClusterShape,
    argv: Sequence[str],
    directory: Path,
    those: Sequence[Machine],
    read: Reading,
    sizes: Sequence[int],
) -> tuple[str, Readings]:
    """Runs a ping-pong and reads each machine's counters at its marks."""
    job = testbed.start_job(cluster, argv, 2, directory, "openmpi")
    readings: Readings = {}
    try:
        for size in (0, *sizes):
            before, after = ([_read_at(job, mark, size, machine, read) for machine in those] for mark in _MARKS)
            readings[size] = list(zip(before, after, strict=True))
    except BaseException:
        job.cancel()
        raise
    return job.wait(_TIME_LIMIT).require_success(), readings


def _read_at(job: RunningJob, mark: str, size: int, machine: Machine, read: Reading) -> Mapping[str, float]:
    job.await_output(f'{{"{mark}": {size}}}'.encode(), _TIME_LIMIT)
    began = time.monotonic()
    values = read(machine)
    if time.monotonic() - began > _PAUSE / 2:
        raise RunFailed("the counters were read too late: the machine is too busy")
    return values


def _log_length(machine: Machine) -> Mapping[str, float]:
    return {"length": machine.log.stat().st_size}


def _trace(
    cluster: ClusterShape, machine: Machine, at: tuple[Mapping[str, float], Mapping[str, float]]
) -> Mapping[str, float]:
    begin, end = (int(reading["length"]) for reading in at)
    with machine.log.open("rb") as log:
        log.seek(begin)
        events = card_events(log.read(end - begin).decode(errors="replace"))
    return {name: number for name, number in events.items() if name not in _QUEUES or _queues_are_traced(cluster)}


def _queues_are_traced(cluster: ClusterShape) -> bool:
    """Whether QEMU sees what is put into queues: other adapters have none, and vhost-net's go to the kernel."""
    return cluster.nic == "virtio" and not cluster.vhost


def _differences(readings: Readings) -> dict[int, list[Mapping[str, float]]]:
    return {
        size: [{name: after[name] - before[name] for name in before if name in after} for before, after in pairs]
        for size, pairs in readings.items()
    }


def _each(found: Mapping[int, Sequence[Mapping[str, float]]], sent: Mapping[float | None, float]) -> list[Value]:
    """The sum over machines for each message, less that of an exchange of nothing."""
    names = [name for name in found[0][0] if all(name in machine for machine in found[0])]
    return [
        Value(
            f"{PREFIX}{name}",
            max(0.0, sum(machine[name] for machine in found[size]) - sum(machine[name] for machine in found[0]))
            / sent[float(size)],
            "s/message" if name.endswith("seconds") else "1/message",
            size,
        )
        for size in found
        if size
        for name in names
    ]
