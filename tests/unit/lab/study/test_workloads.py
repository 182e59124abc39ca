"""When runs count: programs that fail their verification, stop early or print nothing fail their run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from wherry.base.errors import Refused
from wherry.lab import hpcc
from wherry.lab.study import applications, workloads
from wherry.lab.study.levels import RunFailed, Value
from wherry.lab.study.testbed import ProgramResult, Testbed

NPB = """ Time in seconds = {seconds}
 Residual 1     1.0E+00  relative error  1.0E-10
 Verification    = {verdict}
"""
MELT = """Per MPI rank memory allocation (min/avg/max) = 3.3 | 3.3 | 3.3 Mbytes
   Step          Temp          E_pair
         0   1.44          -6.7733681
       100   0.75          -5.7
Loop time of 1.5 on 3 procs for 100 steps with 16384 atoms
"""
WATER = """Started mdrun on rank 0 Sun Jan  1 00:00:00 2026
           Step           Time
              0        0.00000

   Energies (kJ/mol)
        LJ (SR)   Coulomb (SR)
    1.13010e+04   -8.33930e+04

           Step           Time
            100        0.20000

Writing checkpoint, step 100 at Sun Jan  1 00:00:01 2026


   Energies (kJ/mol)
        LJ (SR)   Coulomb (SR)
    1.12000e+04   -8.30000e+04

Finished mdrun on rank 0 Sun Jan  1 00:00:01 2026
"""


class FinishedTestbed(Testbed):
    """Runs nothing: writes the program's file and returns a given result."""

    def __init__(self, stdout: str = "", code: int = 0, file: str = "", text: str = "") -> None:
        self._result, self._file, self._text = ProgramResult(code, stdout, "stderr's own words"), file, text

    def run_native(self, argv: Sequence[str], ranks: int, directory: Path, *_words: Any, **_more: Any) -> ProgramResult:
        if self._file:
            (directory / self._file).write_text(self._text)
        return self._result


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that all programs are installed; none is run."""
    monkeypatch.setattr(workloads, "installed", lambda name, package: name)
    monkeypatch.setattr(workloads, "native_program", lambda name: Path(name))
    monkeypatch.setattr(applications.shutil, "which", lambda name: name)


def npb(stdout: str, code: int = 0) -> Callable[[Path], list[Value]]:
    return lambda directory: workloads.npb(FinishedTestbed(stdout, code), None, "sp", "S", 4, directory)


def hpl(text: str) -> Callable[[Path], list[Value]]:
    problem = hpcc.Problem(pfacts=1, rfacts=1, bcasts=1, depths=1)
    return lambda directory: workloads.hpl(FinishedTestbed(file=hpcc.OUTPUT, text=text), None, problem, directory)


def application(name: str, file: str, text: str) -> Callable[[Path], list[Value]]:
    last = {"lammps": " 10000 ", "gromacs": "  4000 "}[name]
    return lambda directory: applications.run(
        FinishedTestbed(file=file, text=text.replace("  100 ", last)), name, None, directory, int(last), 3
    )


@pytest.mark.parametrize(
    ("measure", "why"),
    [
        (npb(NPB.format(seconds="1.0", verdict="UNSUCCESSFUL"), 1), "verification did not succeed"),
        (npb(NPB.format(seconds="1.0", verdict="")), "printed no verification"),
        (npb("", 2), "exit code 2: stderr's own words"),
        (hpl(f"{hpcc.BEGIN}\n1 tests completed and failed residual checks\n{hpcc.END}"), "0 of 1 of HPL's"),
        (hpl(f"{hpcc.BEGIN}\n"), "never appeared"),
        (application("lammps", "log.lammps", MELT.replace("  100 ", "   50 ")), "came to step 50 of 10000"),
        (application("lammps", "log.lammps", MELT.partition("Loop")[0]), "never appeared"),
        (
            application("gromacs", "md.log", WATER[: WATER.rindex("Energies")] + "Finished mdrun"),
            "came to step 0 of 4000",
        ),
        (application("gromacs", "md.log", ""), "never appeared"),
    ],
)
def test_failed_or_incomplete_programs_fail_their_run(
    tmp_path: Path, measure: Callable[[Path], list[Value]], why: str
) -> None:
    with pytest.raises(RunFailed, match=why):
        measure(tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "text", "digit"), [("lammps", "log.lammps", MELT, "-5.7"), ("gromacs", "md.log", WATER, "1.12000")]
)
def test_result_checksum_changes_with_any_digit(tmp_path: Path, name: str, file: str, text: str, digit: str) -> None:
    def result(content: str) -> float:
        values = application(name, file, content)(tmp_path)
        return next(value.value for value in values if value.metric == "result_crc")

    assert result(text) == result(text.replace("1.5 on", "2.5 on").replace("00:00:01", "00:00:09"))
    assert result(text) != result(text.replace(digit, f"{digit}1"))


def test_missing_application_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nonexistent")
    assert set(applications.missing_applications()) == {"lammps", "gromacs"}
    assert all(
        "make setup-apps" in level.left_out for level in applications.levels(applications.missing_applications(), 3)
    )
    with pytest.raises(Refused, match="lmp is not installed"):
        applications.run(FinishedTestbed(), "lammps", None, Path("/nonexistent"), 100, 3)


@pytest.mark.parametrize(
    ("name", "log", "seconds"),
    [("lammps", MELT, 1.5), ("gromacs", WATER + "       Time:       19.6        9.8      200.0\n", 9.8)],
)
def test_a_log_says_how_long_all_steps_took(name: str, log: str, seconds: float) -> None:
    application = applications.APPLICATIONS[name]
    assert application.seconds_of(log, 100) == seconds
    assert application.seconds_of(log, 200) is None and application.seconds_of("", 100) is None
