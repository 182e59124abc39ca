"""A program that moves itself: between steps rank 0 moves first its own node, then that of the last rank, to the usable
host with the most free memory. It reports to Wherry how much is left. Elsewhere it only counts.

    wherry run hello -n 4 --env PYTHONPATH=$(wherry inside python) -- python3 examples/move_self.py

With mpi4py the ranks add up in each step; without it each counts by itself.
"""

from __future__ import annotations

import os
import time

import wherry_inside as wherry

try:
    from mpi4py import MPI

    RANK, RANKS = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
except ImportError:
    MPI = None
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    RANK = next((int(os.environ[name]) for name in names if name in os.environ), 0)
    RANKS = next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") if name in os.environ), 1)
STEPS = 30


def move_rank(rank: int) -> None:
    """Moves the node of a rank to another host, and prints the result."""
    before = wherry.where(rank)
    others = [host for host in wherry.hosts() if host.usable and before and host.name != before.host]
    if not before or not others:
        return
    try:
        wherry.move(max(others, key=lambda host: host.free_memory).name, rank=rank)
    except wherry.InsideError as error:
        print(f"rank {rank} stays on {before.host}: {error}", flush=True)
        return
    after = wherry.where(rank)
    print(f"rank {rank} moved from {before.host} to {after.host if after else '?'}", flush=True)


def main() -> None:
    """Counts."""
    total = 0
    if RANK == 0:
        print("under Wherry" if wherry.active() else "not under Wherry", flush=True)
    for step in range(STEPS):
        if RANK == 0 and step == STEPS // 3:
            move_rank(0)
        if RANK == 0 and step == 2 * STEPS // 3:
            move_rank(RANKS - 1)
        if RANK == 0:
            wherry.iterations_left(STEPS - step)
        time.sleep(0.02)
        mine = (RANK + 1) * (step + 1)
        total += MPI.COMM_WORLD.allreduce(mine) if MPI else mine
    if RANK == 0:
        print(f"sum {total}", flush=True)


if __name__ == "__main__":
    main()
