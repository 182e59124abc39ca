"""NPB pseudo-applications LU, SP, BT natively: class S verifies with every supported decomposition, others are
refused."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess

import native_runs
import pytest

import waiting
from wherry.base.errors import Refused
from wherry.base.paths import native_library, native_program

# Debian 12's MPICH occasionally hangs in MPI_Finalize without our library.
COMMANDS = {
    "openmpi": "mpirun.openmpi --allow-run-as-root --oversubscribe --mca btl vader,self -n {ranks}",
    "mpich": "mpiexec.mpich -genv LD_PRELOAD libwherry-finalize.so -n {ranks}",
}
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}
GIB = 1 << 30


def program(kernel: str, flavour: str) -> str:
    try:
        return str(native_program(f"npb-{kernel}-{flavour}"))
    except Refused:
        pytest.skip(f"no compiler wrapper mpicc.{flavour} when the native programs were built")


def run(kernel: str, flavour: str, ranks: int, letter: str) -> subprocess.CompletedProcess[str]:
    launcher = COMMANDS[flavour].format(ranks=ranks).split()
    if not shutil.which(launcher[0]):
        pytest.skip(f"no {launcher[0]} on this machine")
    command = [*launcher, program(kernel, flavour), letter]
    # By name, because LD_PRELOAD is separated by blanks, which the checkout's path may contain.
    libraries = str(native_library("libwherry-finalize.so").parent)
    env = native_runs.environment(**YIELD, LD_LIBRARY_PATH=libraries)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)


def check_verified(done: subprocess.CompletedProcess[str], kernel: str, ranks: int) -> None:
    assert done.returncode == 0, done.stderr
    fields = dict(re.findall(r"^ (\S.*?) *= *(\S.*)$", done.stdout, re.MULTILINE))
    assert f"-- {kernel.upper()} Benchmark" in done.stdout
    assert fields["Class"] == "S" and fields["Size"] == "12x12x12"
    assert fields["Total processes"] == str(ranks)
    assert fields["Verification"] == "SUCCESSFUL"


@pytest.mark.parametrize(
    ("kernel", "flavour", "ranks"),
    [
        *(("lu", "openmpi", 4), ("sp", "openmpi", 4), ("bt", "openmpi", 4)),
        *(("lu", "mpich", 4), ("sp", "mpich", 1), ("bt", "mpich", 1)),
        *(pytest.param(kernel, "openmpi", 1, marks=pytest.mark.thorough) for kernel in ("lu", "sp", "bt")),
        *(
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in (("lu", "mpich", 1), ("sp", "mpich", 4), ("bt", "mpich", 4))
        ),
    ],
)
def test_applications_verify_class_s(kernel: str, flavour: str, ranks: int) -> None:
    done = run(kernel, flavour, ranks, "S")
    check_verified(done, kernel, ranks)
    compared = re.findall(r"^ (?:Residual|Error) [1-5] .*relative error +(\S+)$", done.stdout, re.MULTILINE)
    assert len(compared) == 10 and max(map(float, compared)) < 1e-10, "worse than rounding explains"


@pytest.mark.parametrize(("kernel", "ranks"), [("lu", 6), ("sp", 9)])
def test_applications_verify_with_interior_ranks(kernel: str, ranks: int) -> None:
    """Interior ranks have two different neighbours along each axis and no face on the boundary."""
    check_verified(run(kernel, "openmpi", ranks, "S"), kernel, ranks)


@pytest.mark.parametrize(("kernel", "ranks"), [("lu", 5), ("sp", 3), ("bt", 2)])
def test_applications_refuse_a_wrong_number_of_ranks(kernel: str, ranks: int) -> None:
    done = run(kernel, "openmpi", ranks, "S")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("npb: ")]
    assert f"not on {ranks}; type: mpirun" in line and "-n 4" in line
    assert "Verification" not in done.stdout


@pytest.mark.parametrize("kernel", ["lu", "sp", "bt"])
def test_applications_refuse_a_class_larger_than_memory(kernel: str) -> None:
    """Class C needs 0.8 GiB on one rank; the limit simulates a small machine. A single process needs no launcher."""
    done = subprocess.run(
        [program(kernel, "mpich"), "C"],
        capture_output=True,
        text=True,
        timeout=waiting.bound(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (GIB // 2, GIB // 2)),
    )
    assert done.returncode == 2, done.stderr
    assert "where rank 0 runs, and there are 0.5 GiB; type a smaller class" in done.stderr
