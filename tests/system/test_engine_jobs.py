"""Jobs whose nodes move at random: no digit changes, and neither a move's cost nor the daemon's resources grow.

A few moves here; 200 of one job, and all programs of NPB in class W, by `make test-engine`.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from realworld import SECONDS, RealInstance, real_instance

from wherry.base.errors import Refused
from wherry.base.paths import native_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
WHOLE = "WHERRY_ENGINE_MOVES" in os.environ
MOVES = 200 if WHOLE else 12
WARM_UP = 2
"""Moves before the first that count: the daemon imports and learns."""
KERNELS = ("bt", "cg", "ep", "ft", "is", "lu", "mg", "sp") if WHOLE else ("lu",)
FLAVOURS = ("openmpi", "mpich") if WHOLE else ("openmpi",)
TIMES = ("Time in seconds", "Mop/s")
"""Lines of NPB's report that are another in each run."""
TRIES = 5
AT_MOST = 1000 if WHOLE else 3
"""Moves of one run; without a bound some come while MPI ends."""
PAUSE = 2
"""Milliseconds that a rank of the ring sleeps in each iteration."""


@pytest.fixture(scope="module")
def four() -> Iterator[RealInstance]:
    """A cluster of four nodes, and a daemon of which nothing was asked before."""
    with real_instance("tenj") as created:
        created.kept.make(lambda: created.up("four", 4, memory="256MiB"))
        yield created


def move_at_random(four: RealInstance, chance: random.Random) -> dict[str, Any]:
    """Moves some node to some other host; the record."""
    node, at = chance.choice(sorted(four.hosts_of("four").items()))
    return four.move(node, chance.choice([host for host in four.hosts() if host != at]))


def held(four: RealInstance) -> dict[str, float]:
    """The daemon's resources: descriptors, threads, processes that it started, MiB of memory."""
    process = Path("/proc") / (four.instance.run / "lock").read_text().strip()
    children = list[str]()
    for file in process.glob("task/*/children"):
        with suppress(OSError):  # a thread that has ended
            children += file.read_text().split()
    resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "descriptors": len(os.listdir(process / "fd")),
        "threads": len(os.listdir(process / "task")),
        "children": len(children),
        "memory": resident / 2**20,
    }


def test_many_moves_of_one_job_leave_nothing_behind(four: RealInstance) -> None:
    chance, rows = random.Random(22), list[dict[str, float]]()

    def many_moves() -> None:
        for number in range(WARM_UP + MOVES):
            record = move_at_random(four, chance)
            rows.append({"downtime": record["downtime"], "total": record["total"], **held(four)})
            if number % 20 == 0:
                four.assert_one_copy("four")

    four.run_under_ring("four", "openmpi", many_moves, memory=8, pause=PAUSE)
    four.assert_one_copy("four")
    part = max(4, MOVES // 10)
    first, last = (
        {name: statistics.median(row[name] for row in some) for name in rows[0]}
        for some in (rows[WARM_UP : WARM_UP + part], rows[-part:])
    )
    print(f"{MOVES} moves; first {first}; last {last}")
    for name in ("descriptors", "threads", "children"):
        assert last[name] <= first[name] + 2, (name, first, last)
    assert last["memory"] <= 1.15 * first["memory"] + 8, (first, last)
    if WHOLE:
        assert last["downtime"] <= 1.25 * first["downtime"] + 0.02, (first, last)
        assert last["total"] <= 1.25 * first["total"] + 0.1, (first, last)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_random_moves_change_no_digit(four: RealInstance, kernel: str, flavour: str) -> None:
    name = f"npb-{kernel}-{flavour}"
    try:
        shutil.copy(native_program(name), four.directory)
    except Refused:
        pytest.skip(f"{name} is not built: no mpicc of {flavour}")
    words, chance, moves = ("run", "four", "-n", "4", "--", f"./{name}", "W"), random.Random(kernel), 0
    still = four(*words)
    assert still.returncode == 0 and "UNSUCCESSFUL" not in still.stdout, still.stderr
    for _ in range(TRIES):
        job = four.start(*words)
        assert job.stdout and job.stderr
        out = job.stdout.readline() + job.stdout.readline()  # MPI has started
        while job.poll() is None and moves < AT_MOST:
            move_at_random(four, chance)
            moves += job.poll() is None
        out, err = out + job.stdout.read(), job.stderr.read()
        assert job.wait(SECONDS) == 0, f"{out[-1000:]}\n{err[-1000:]}"
        assert digits(out) == digits(still.stdout)
        if moves:
            break
    four.assert_one_copy("four")
    print(f"{name}: {moves} moves")
    assert moves, "no move took place while it ran"


def digits(text: str) -> list[str]:
    """Its output without times."""
    return [line for line in text.splitlines() if not any(word in line for word in TIMES)]
