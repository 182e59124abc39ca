"""Two applications from Debian packages, each with a small problem that needs no further input files. LAMMPS melts a
Lennard-Jones crystal; GROMACS simulates water with its own force field. Both are deterministic for a given number of
ranks (GROMACS with -reprod), so their printed energies must be identical with and without a move.

Invariant: a run counts only if it completed all steps; its result is the printed energies and contains no times.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_EVERY = 100
"""Steps between two printed lines of energies."""

Native = Callable[[list[str], Path], None]
"""Runs a command in a directory, without a cluster; raises when it fails."""
_MELT = """\
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 {cells} 0 {cells} 0 {cells}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify delay 0 every 20 check no
fix 1 all nve
thermo {every}
thermo_modify flush yes format float %.15g
run {steps}
"""
_TOPOLOGY = """\
#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spce.itp"
[ system ]
Water
[ molecules ]
"""
_DYNAMICS = """\
integrator = md
dt = 0.002
nsteps = {steps}
nstlog = {every}
nstcalcenergy = {every}
nstenergy = 0
cutoff-scheme = Verlet
coulombtype = PME
rcoulomb = 0.9
rvdw = 0.9
gen-vel = yes
gen-temp = 300
gen-seed = 87287
constraints = none
"""
_BOX = 2 * 1.86206
"""Edge of the box in nm: twice that of the water box that GROMACS ships."""
_THERMO = re.compile(r"^ *Step .*\n((?: *\d+ .*\n)+)Loop time of", re.MULTILINE)
_ENERGIES = re.compile(
    r"^ +Step +Time\n +(\d+) .*\n"
    r"(?:(?! +Step ).*\n)*?"  # a message about a written checkpoint may be in between
    r"   Energies \(kJ/mol\)\n((?:.+\n)+)",
    re.MULTILINE,
)


def thermo(log: str) -> tuple[int, str]:
    """Parses LAMMPS's log: last step and lines of energies."""
    table = _THERMO.search(log)
    rows = [" ".join(row.split()) for row in table[1].splitlines()] if table else []
    return int(rows[-1].split()[0]) if rows else -1, "\n".join(rows)


def energies(log: str) -> tuple[int, str]:
    """Parses GROMACS's log: last step and blocks of energies, without the averages."""
    match = _ENERGIES.findall(log)
    text = "\n".join(f"{step} {' '.join(block.split())}" for step, block in match)
    return int(match[-1][0]) if match else -1, text


def _prepare_lammps(native: Native, program: str, steps: int, directory: Path) -> list[str]:
    (directory / "in.melt").write_text(_MELT.format(cells=10, every=_EVERY, steps=steps))
    return [program, "-in", "in.melt", "-log", "log.lammps", "-screen", "none"]


def _prepare_gromacs(native: Native, program: str, steps: int, directory: Path) -> list[str]:
    (directory / "topol.top").write_text(_TOPOLOGY)
    (directory / "md.mdp").write_text(_DYNAMICS.format(steps=steps, every=_EVERY))
    box = [f"{_BOX:g}"] * 3
    for words in (
        ["solvate", "-cs", "spc216.gro", "-box", *box, "-o", "water.gro", "-p", "topol.top"],
        ["grompp", "-f", "md.mdp", "-c", "water.gro", "-p", "topol.top", "-o", "md.tpr"],
    ):
        native([program, "-nobackup", *words], directory)
    words = ["mdrun", "-s", "md.tpr", "-deffnm", "md", "-reprod", "-ntomp", "1", "-pin", "off"]
    return [program, "-nobackup", *words]


@dataclass(frozen=True)
class Application:
    """An application: program, input, and the parsing of its log."""

    text: str
    program: str
    steps: tuple[int, int]
    """Steps of a full and of a quick run: about 10 and 3 seconds on a core of 2023."""
    prepare: Callable[[Native, str, int, Path], list[str]]
    """Writes the input for a number of steps and returns the command."""
    log: str
    marks: tuple[str, str]
    """Texts in the log at the start and at the end of the steps."""
    seconds: re.Pattern[str]
    """Where the log has the seconds of the steps."""
    result: Callable[[str], tuple[int, str]]
    """Parses the log: last step and energies."""

    def seconds_of(self, log: str, steps: int) -> float | None:
        """The seconds of so many steps by the log; None if they are not the last of it."""
        match = self.seconds.search(log)
        return float(match[1]) if match and self.result(log)[0] == steps else None

    def why_missing(self) -> str:
        """Why it cannot run here; empty if it can."""
        return "" if shutil.which(self.program) else f"{self.program} is not installed (make setup-apps)"


APPLICATIONS = {
    "lammps": Application(
        text="LAMMPS, a melting crystal",
        program="lmp",
        steps=(10_000, 2_000),
        prepare=_prepare_lammps,
        log="log.lammps",
        marks=("Per MPI rank memory", "Loop time of"),
        seconds=re.compile(r"^Loop time of ([\d.]+)", re.MULTILINE),
        result=thermo,
    ),
    "gromacs": Application(
        text="GROMACS, water",
        program="gmx_mpi",
        steps=(4_000, 1_000),
        prepare=_prepare_gromacs,
        log="md.log",
        marks=("Started mdrun", "Finished mdrun"),
        seconds=re.compile(r"^ +Time: +[\d.]+ +([\d.]+)", re.MULTILINE),
        result=energies,
    ),
}
