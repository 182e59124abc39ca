"""wherry-queens and wherry-shallow on this machine alone: counts, checksums that do not depend on ranks, refusals."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import native_runs
import pytest
from test_native_bench import LAUNCHERS, built

FLAVOURS = sorted(LAUNCHERS)


def run(flavour: str, ranks: int, program: str, *options: object) -> subprocess.CompletedProcess[str]:
    words = [*LAUNCHERS[flavour].split(), "-n", str(ranks), built(f"wherry-{program}-{flavour}"), *map(str, options)]
    return subprocess.run(words, capture_output=True, text=True, timeout=240, env=native_runs.environment())


@pytest.mark.parametrize(
    ("flavour", "ranks", "dynamic"),
    [
        *(("openmpi", 3, ()), ("openmpi", 3, ("--dynamic",)), ("mpich", 2, ()), ("mpich", 2, ("--dynamic",))),
        *(pytest.param(flavour, 1, (), marks=pytest.mark.thorough) for flavour in FLAVOURS),
        *(pytest.param(flavour, 1, ("--dynamic",), marks=pytest.mark.thorough) for flavour in FLAVOURS),
        pytest.param("mpich", 3, ("--dynamic",), marks=pytest.mark.thorough),
    ],
)
def test_queens_are_counted(flavour: str, ranks: int, dynamic: tuple[str, ...]) -> None:
    done = run(flavour, ranks, "queens", "--n", 9, "--json", *dynamic)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["solutions"], found["right"], found["ranks"]) == (352, True, ranks)


@pytest.mark.parametrize(
    ("n", "solutions"),
    [
        *(pytest.param(*one, marks=pytest.mark.thorough) for one in ((4, 2), (5, 10), (8, 92))),
        (6, 4),
        (10, 724),
        (12, 14200),
    ],
)
def test_queens_know_their_counts(n: int, solutions: int) -> None:
    """Whatever the rows of a piece of work."""
    for depth in (1, 2, n):
        done = run("openmpi", 2, "queens", "--n", n, "--depth", depth)
        assert done.returncode == 0 and "SUCCESSFUL" in done.stdout
        assert re.search(rf"Solutions += {solutions}\n", done.stdout) and "Time in seconds = " in done.stdout


@pytest.mark.parametrize("options", [("--n", "3"), ("--n", "21"), ("--n", "8", "--depth", "9"), ("word",)])
def test_queens_refuse_wrong_options(options: tuple[str, ...]) -> None:
    done = run("openmpi", 1, "queens", *options)
    assert done.returncode != 0 and "usage:" in done.stderr


def lines(text: str) -> list[str]:
    return re.findall(r"Time step +\d+ +checksum \w{16}", text)


def test_shallow_has_the_same_bits_on_any_ranks(tmp_path: Path) -> None:
    """With both MPIs; the field that is written, too."""
    outputs, fields = set(), set()
    for number, (flavour, ranks) in enumerate((("openmpi", 1), ("openmpi", 3), ("openmpi", 4), ("mpich", 2))):
        field = tmp_path / str(number)
        done = run(flavour, ranks, "shallow", "--n", 50, "--steps", 130, "--every", 50, "--field", field)
        assert done.returncode == 0 and "SUCCESSFUL" in done.stdout, done.stderr
        outputs.add(tuple(lines(done.stdout)))
        fields.add(field.read_bytes())
    assert len(outputs) == len(fields) == 1
    (steps,) = outputs
    assert [int(line.split()[2]) for line in steps] == [50, 100, 130]
    assert len({line.split()[-1] for line in steps}) == 3 and len(fields.pop()) == 50 * 50 * 8


@pytest.mark.parametrize("options", [("--n", "0"), ("--steps", "0"), ("--every", "-1"), ("word",)])
def test_shallow_refuses_wrong_options(options: tuple[str, ...]) -> None:
    done = run("openmpi", 1, "shallow", *options)
    assert done.returncode != 0 and "usage:" in done.stderr


def test_shallow_takes_no_more_ranks_than_rows() -> None:
    done = run("openmpi", 3, "shallow", "--n", 2)
    assert done.returncode != 0 and "fewer cells" in done.stderr
