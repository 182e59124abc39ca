"""How many ranks NPB's programs run on, as they say themselves: CG, FT, IS and MG on a power of two, BT and SP on a
square, LU on A x B with A <= B <= 2 A, EP on any number; each on no more than its class has work for.
"""

from __future__ import annotations

from wherry.lab.hpcc import grid

POWERS = tuple(1 << bits for bits in range(11))
"""Numbers that CG, FT, IS and MG take, and so all but BT and SP."""
_LARGEST = "C"
_POINTS = {
    "bt": {"S": 12, "W": 24, "A": 64, "B": 102, "C": 162},
    "sp": {"S": 12, "W": 36, "A": 64, "B": 102, "C": 162},
    "lu": {"S": 12, "W": 33, "A": 64, "B": 102, "C": 162},
}
"""Points along a side of the grid, by program and class."""
_NARROWEST = 3
"""Points along a side that a rank has at least."""
_MAX_RANKS = {"cg": 1024, "is": 256, "mg": 512}
_MAX_FT_RANKS = {"S": 64, "W": 32, "A": 128, "B": 256, "C": 512}


def takes(program: str, ranks: int, npb_class: str = _LARGEST) -> bool:
    """Whether the program runs on so many ranks."""
    if program in _POINTS:
        narrow, wide = grid(ranks)
        fits = wide <= 2 * narrow if program == "lu" else wide == narrow
        return fits and wide * _NARROWEST <= _POINTS[program][npb_class]
    if program == "ft" or program in _MAX_RANKS:
        return ranks & (ranks - 1) == 0 and ranks <= (
            _MAX_FT_RANKS[npb_class] if program == "ft" else _MAX_RANKS[program]
        )
    return True


def at_most(program: str, ranks: int, npb_class: str = _LARGEST) -> int:
    """The largest number that the program takes and that is not above; all take 1."""
    return next(number for number in range(ranks, 0, -1) if takes(program, number, npb_class))


def at_least(program: str, ranks: int, npb_class: str = _LARGEST) -> int | None:
    """The least number that the program takes and that is not below; None where the class has no work for so many."""
    return next((number for number in range(ranks, 4 * ranks + 1) if takes(program, number, npb_class)), None)
