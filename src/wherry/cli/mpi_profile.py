"""How `wherry job profile` shows what ranks do inside MPI: their time, the operations, and who sends to whom."""

from __future__ import annotations

import math

from wherry.base.text import printable
from wherry.base.units import format_duration, format_size
from wherry.cli.output import painted, table
from wherry.model.mpi_profile import MpiProfile, OperationUse, RankActivity

_RANKS, _OPERATIONS, _GRID = 16, 12, 32
"""Rows of ranks and of operations, and cells in a line of the matrix, at most."""
_SHADES = (("·", 90), ("░", 34), ("▒", 32), ("▓", 33), ("█", 31))
"""Nothing, then less than a hundredth of the most, a tenth, a half, and more; each with its colour."""
_STEPS = (0.01, 0.1, 0.5)


def show(profile: MpiProfile) -> None:
    """Prints the profile."""
    head = f"{profile.job}: {len(profile.ranks)} of {profile.size} ranks, seen for {profile.seconds:.1f} s"
    print(f"{head}. {profile.kind.capitalize()}: {printable(profile.reason)}.")
    header = ("RANK", "NODE", "COMPUTES", "WAITS", "TRANSFERS", "CALLS", "ITERATION", "NOW")
    busiest = sorted(profile.ranks, key=lambda rank: -rank.computing)[:_RANKS]
    table(header, [_rank(rank) for rank in sorted(busiest, key=lambda rank: rank.rank)], "")
    if len(profile.ranks) > _RANKS:
        print(f"These compute most; {len(profile.ranks) - _RANKS} others are in the JSON document.")
    print(f"The longest computing is {profile.imbalance:.2f} times the mean.\n")
    columns = ("OPERATION", "SIZE", "CALLS", "BYTES", "OF TIME", "WAITING")
    table(columns, [_operation(use) for use in profile.operations[:_OPERATIONS]], "Nothing was called.")
    if profile.flows:
        _matrix(profile)
    if profile.outside:
        print(f"{profile.outside:.0f} messages/s go to processes that are not in MPI_COMM_WORLD.")
    for node, why in profile.unseen.items():
        print(f"{node} is not seen: {why}")


def _rank(rank: RankActivity) -> tuple[object, ...]:
    turn = f"{format_duration(rank.period)} ({rank.steps} calls)" if rank.period is not None else "-"
    now = f"MPI_{rank.now} for {format_duration(rank.lasts)}" if rank.now and rank.lasts >= 1 else ""
    shares = (f"{share:.0%}" for share in (rank.computing, rank.waiting, rank.transferring))
    return rank.rank, rank.node, *shares, f"{rank.calls:.0f}/s", turn, now


def _operation(use: OperationUse) -> tuple[object, ...]:
    size = f"{format_size(use.least)} to {format_size(4 * use.least)}" if use.least else "-"
    return (
        f"MPI_{use.operation}", size, f"{use.calls:.0f}/s", f"{format_size(use.bytes)}/s",
        f"{use.share:.1%}", f"{use.waiting:.1%}",
    )  # fmt: skip


def _matrix(profile: MpiProfile) -> None:
    """Prints who sends how many bytes to whom, a row for each sender; several ranks in one when there are many."""
    each = math.ceil(profile.size / _GRID)
    count = math.ceil(profile.size / each)
    sums = [[0.0] * count for _ in range(count)]
    for flow in profile.flows:
        sums[flow.source // each][flow.target // each] += flow.bytes
    most = max(max(row) for row in sums)
    ranks = "ranks" if each == 1 else f"{each} ranks each"
    print(f"\nFrom (down) to (across), {ranks}; the darkest is {format_size(most)}/s:")
    for index, row in enumerate(sums):
        print(f"{index * each:>6} {''.join(_shade(sent, most) for sent in row)}")


def _shade(sent: float, most: float) -> str:
    level = 1 + sum(sent > most * step for step in _STEPS) if sent else 0
    sign, color = _SHADES[level]
    return painted(sign * 2, color)
