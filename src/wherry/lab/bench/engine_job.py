"""The cost of a move's rounds to a job: NPB's CG on two nodes, of which one moves to and fro at the rate of a link.

The job itself is the baseline: its iterations while nothing moves, beside those within a move's rounds.
"""

from __future__ import annotations

import re
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.client import Client, identity
from wherry.lab.bench.definition import Row
from wherry.lab.bench.jobs import await_output
from wherry.model.records import Move

JOB_MEMORY = 768 << 20
"""Bytes of each of its nodes."""
_PROGRAM = "npb-cg-openmpi"
_STAMP = "import sys, time\nfor line in sys.stdin:\n    print(f'{time.time():.6f} {line}', end='', flush=True)\n"
"""Python program that puts the time before each line; its node does not move."""
_ITERATION = re.compile(r"(?m)^(\d+\.\d+) +\d+ +\d\.\d+E")
_MOVES, _PAUSE, _LIMIT = 6, 2.0, 900.0


def cost_of_rounds(
    client: Client, cluster: str, hosts: tuple[str, str], size: str, bandwidth: str, directory: Path
) -> Row:
    """Seconds of an iteration in the rounds of moves (`moving`), and while nothing moved (`still`)."""
    program = directory / _PROGRAM
    if not program.exists():
        shutil.copy(native_program(_PROGRAM), program)
    owner = identity.process_owner(directory)
    spec = {"name": cluster, "nodes": 2, "cpus": 1.0, "memory": f"{JOB_MEMORY}B", "hosts": [*hosts]}
    client.wait(client.up(spec, "the benchmark's cluster", owner).id)
    command = shlex.join([str(program), size])
    stamped = f"{command} | {shlex.join(['/usr/bin/python3', '-c', _STAMP])}"
    script = f'if [ "$OMPI_COMM_WORLD_RANK" = 0 ]; then {stamped}; else exec {command}; fi'
    job = client.run(cluster, ["/bin/sh", "-c", script], 2, mpi="openmpi", owner=owner)
    await_output(client, job.id, b"E-", _LIMIT)
    moves = list[Move]()
    for number in range(_MOVES):
        time.sleep(_PAUSE)
        there = hosts[number % 2]
        moves.append(client.moved(client.wait(client.begin_move(f"{cluster}-1", there, bandwidth=bandwidth).id)))
    output = b"".join(data for stream, _, data in client.output(job.id, seconds=_LIMIT) if stream == "stdout").decode()
    if "SUCCESSFUL" not in output:
        raise Failed(Code.FAILED, "the program did not verify its result", output[-200:])
    ends = [float(found) for found in _ITERATION.findall(output)]
    down = [move.downtime for move in moves]
    return {"moving": seconds_in_rounds(ends, moves), "still": seconds_beside(ends, moves), "downtimes": down}


def seconds_in_rounds(ends: Sequence[float], moves: Sequence[Move]) -> float:
    """Seconds of an iteration while the rounds of moves last. `ends` are the times at which iterations ended."""
    return _seconds(
        ends, moves, [(_after(move, "rounds") - move.phases["rounds"], _after(move, "rounds")) for move in moves]
    )


def seconds_beside(ends: Sequence[float], moves: Sequence[Move]) -> float:
    """Seconds of an iteration while nothing moves."""
    changes = [time for move in moves for time in (move.created, move.ended or move.created)]
    times = [ends[0], *changes, ends[-1]]
    return _seconds(ends, moves, list(zip(times[::2], times[1::2], strict=True)))


def _seconds(ends: Sequence[float], moves: Sequence[Move], windows: Sequence[tuple[float, float]]) -> float:
    """The windows' seconds over the iterations done in them. An iteration at a window's edge counts in part, by a clock
    that stops during downtimes: they are the cost of neither side."""
    clock = [_running(time, moves) for time in ends]
    inside = [(max(low, ends[0]), min(high, ends[-1])) for low, high in windows]
    edges = [(_running(low, moves), _running(high, moves)) for low, high in inside if low < high]
    done = sum(float(np.diff(np.interp(edge, clock, range(len(clock))))[0]) for edge in edges)
    if not done:
        raise Failed(
            Code.FAILED, "the program did no iteration while rounds lasted, or none beside", "", "a larger class"
        )
    return sum(high - low for low, high in edges) / done


def _running(time: float, moves: Sequence[Move]) -> float:
    """The time, less the downtimes until then."""
    frozen = [min(max(time - _after(move, "rounds"), 0.0), move.downtime or 0.0) for move in moves]
    return time - sum(frozen)


def _after(move: Move, phase: str) -> float:
    """When a phase ended."""
    names = list(move.phases)
    return move.created + sum(move.phases[name] for name in names[: names.index(phase) + 1])
