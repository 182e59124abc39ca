"""`wherry inside`: flags of compilers and interpreters for a program that asks Wherry (docs/inside.md)."""

from __future__ import annotations

import shlex
from typing import Literal

from wherry.base.paths import for_programs, native_library

_HOW = """\
C:       mpicc -o program program.c $(wherry inside c)
Fortran: mpif90 -o program $(wherry inside fortran) program.f90
Python:  wherry run NAME -n 4 --env PYTHONPATH=$(wherry inside python) -- python3 program.py"""


def inside(language: Literal["c", "fortran", "python"] | None = None, /) -> None:
    """Print what a program needs that asks Wherry itself: where it is, for a move of its own, with hints.

    Parameters
    ----------
    language
        Of the program. Without it: how each is used.
    """
    if language is None:
        print(_HOW)
        return
    archive, header = native_library("libwherry.a"), for_programs("wherry.h")
    if language == "c":
        print(shlex.join([f"-I{header.parent}", str(archive), "-pthread"]))
    elif language == "fortran":
        print(shlex.join([str(for_programs("wherry.f90")), str(archive), "-pthread"]))
    else:
        print(for_programs("wherry_inside.py").parent)
