"""NPB kernels EP, CG, MG, FT, IS natively: class S verifies with each MPI, and invalid input is refused."""

from __future__ import annotations

import os
import re
import resource
import shutil
import struct
import subprocess
from pathlib import Path

import native_runs
import pytest

import waiting
from wherry.base.errors import Refused
from wherry.base.paths import native_program

KERNELS = ("ep", "cg", "mg", "ft", "is")
COMMANDS = {
    "openmpi": "mpirun.openmpi --allow-run-as-root --oversubscribe --mca btl vader,self -n {ranks}",
    "mpich": "mpiexec.mpich -n {ranks}",
}
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}
GIB = 1 << 30


def program(kernel: str, flavour: str) -> str:
    try:
        return str(native_program(f"npb-{kernel}-{flavour}"))
    except Refused:
        pytest.skip(f"no compiler wrapper mpicc.{flavour} when the native programs were built")


def run(kernel: str, flavour: str, ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = COMMANDS[flavour].format(ranks=ranks).split()
    if not shutil.which(launcher[0]):
        pytest.skip(f"no {launcher[0]} on this machine")
    command = [*launcher, program(kernel, flavour), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=native_runs.environment(**YIELD))


def field(output: str, label: str) -> str:
    match = re.search(rf"^ {re.escape(label)} *= *(\S.*)$", output, re.MULTILINE)
    assert match, f"no {label!r} in:\n{output}"
    return match[1]


def test_kernels_report_a_wrong_result(tmp_path: Path) -> None:
    """EP with a modified reference value in the program file."""
    published = struct.pack("<d", -3.247834652034740e3)
    whole = Path(program("ep", "openmpi")).read_bytes()
    assert whole.count(published) == 1
    other = tmp_path / "npb-ep"
    other.write_bytes(whole.replace(published, struct.pack("<d", -3.247834652e3 * 1.001)))
    other.chmod(0o755)
    command = [*COMMANDS["openmpi"].format(ranks=1).split(), str(other), "S"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=native_runs.environment(**YIELD))
    assert done.returncode == 1, done.stderr
    assert field(done.stdout, "Verification") == "UNSUCCESSFUL"


@pytest.mark.parametrize(
    ("kernel", "flavour", "ranks"),
    [
        pytest.param(kernel, flavour, ranks, marks=[] if ranks == usual else pytest.mark.thorough)
        for kernel in KERNELS
        for flavour in sorted(COMMANDS)
        for usual in [1 if (kernel, flavour) == ("cg", "mpich") else 2]
        for ranks in (1, 2, 4)
    ],
)
def test_kernels_verify_class_s(kernel: str, flavour: str, ranks: int) -> None:
    if (kernel, flavour) == ("cg", "mpich") and ranks > len(os.sched_getaffinity(0)):
        pytest.skip("MPICH's ranks spin while they wait, which CG does 2000 times: it needs a processor for each rank")
    done = run(kernel, flavour, ranks, "S")
    assert done.returncode == 0, done.stderr
    assert f"-- {kernel.upper()} Benchmark" in done.stdout
    assert field(done.stdout, "Class") == "S"
    assert field(done.stdout, "Total processes") == str(ranks)
    assert field(done.stdout, "Verification") == "SUCCESSFUL"
    assert float(field(done.stdout, "Time in seconds")) > 0
    total, each = float(field(done.stdout, "Mop/s total")), float(field(done.stdout, "Mop/s/process"))
    assert each == pytest.approx(total / ranks, abs=0.01)


def test_ep_runs_on_any_number_of_ranks() -> None:
    done = run("ep", "openmpi", 3, "S")
    assert done.returncode == 0, done.stderr
    assert field(done.stdout, "Verification") == "SUCCESSFUL"


@pytest.mark.parametrize(
    ("kernel", "flavour"), [("cg", "openmpi"), ("cg", "mpich"), ("mg", "mpich"), ("ft", "mpich"), ("is", "mpich")]
)
def test_kernels_refuse_a_wrong_number_of_ranks(kernel: str, flavour: str) -> None:
    done = run(kernel, flavour, 3, "S")
    assert done.returncode == 2
    line = "npb: this kernel runs on 1, 2, 4, 8, ... processes, not on 3; type: mpirun -n 2 or -n 4\n"
    assert done.stderr.count(line) == 1
    assert "Verification" not in done.stdout


@pytest.mark.parametrize("arguments", [(), ("X",), (" ",), ("S", "S")])
def test_kernels_refuse_an_unknown_class(arguments: tuple[str, ...]) -> None:
    done = run("is", "mpich", 1, *arguments)
    assert done.returncode == 2
    assert "type one of S, W, A, B, C" in done.stderr


def test_kernels_refuse_a_class_larger_than_memory() -> None:
    """FT class C needs 4 GiB on one rank; the limit simulates a small machine. A single process needs no launcher."""
    done = subprocess.run(
        [program("ft", "mpich"), "C"],
        capture_output=True,
        text=True,
        timeout=waiting.bound(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 * GIB, 3 * GIB)),
    )
    assert done.returncode == 2, done.stderr
    assert re.search(r"class C needs 4\.\d GiB where rank 0 runs, and there are 3\.0 GiB; type a smaller", done.stderr)


@pytest.mark.parametrize(
    ("limit", "expected"), [("1e8", "needs 0.3 GiB where rank 0 runs"), ("much", "no number of bytes")]
)
def test_kernels_obey_the_memory_limit_in_the_environment(limit: str, expected: str) -> None:
    done = subprocess.run(
        [program("ft", "mpich"), "A"],
        capture_output=True,
        text=True,
        timeout=waiting.bound(),
        env=native_runs.environment(**YIELD, NPB_NODE_MEMORY=limit),
    )
    assert done.returncode == 2 and expected in done.stderr, done.stderr
