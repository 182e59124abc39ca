"""docs/programs.md names every program of studies, benchmarks and tiles, with the arguments that its source gives."""

from __future__ import annotations

import re
from pathlib import Path

from wherry.lab.study.requirements import INSTALLED

TOP = Path(__file__).resolve().parents[3]
NATIVE = TOP / "native"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (TOP / "docs/programs.md").read_text().splitlines()
    if line.startswith("| `")
]


def arguments(program: str) -> list[str]:
    """The arguments of a program in the page's rows."""
    return [row[1].replace("`", "") for row in ROWS if f"`{program}`" in row[0].split(", ")]


def head(source: Path) -> str:
    """The comment at the head of a source, in one line."""
    text = source.read_text()
    return " ".join(text[: text.index("*/")].replace("*", " ").split())


def test_measuring_programs_have_the_usage_of_their_sources() -> None:
    sources = sorted(file for file in (NATIVE / "bench").glob("*.c") if "int main(" in file.read_text())
    assert {f"`wherry-{source.stem}`" for source in sources} == {row[0] for row in ROWS if row[0].startswith("`wherry")}
    for source in sources:
        rows, text = arguments(f"wherry-{source.stem}"), head(source)
        assert rows and all(f"wherry-{source.stem} {row} " in f"{text} " for row in rows), (source, rows)
        assert text.count(f" wherry-{source.stem} ") == len(rows), "a form is left out"
        options = re.findall(r'\{"([a-z]+)", (?:required|no)_argument', source.read_text())
        assert sorted(options) == sorted(re.findall(r"--([a-z]+)", rows[0]))


def test_nas_programs_are_listed() -> None:
    kernels = re.findall(r"`npb-([a-z]+)`", " ".join(row[0] for row in ROWS))
    built = (NATIVE / "bench/npb/CMakeLists.txt").read_text()
    assert len(kernels) == 8 and all((NATIVE / f"bench/npb/{kernel}.c").exists() for kernel in kernels)
    assert all(re.search(rf"\b{kernel}\b", built) for kernel in kernels)


def test_programs_of_tiles_have_the_arguments_of_their_sources() -> None:
    sources = {path.stem: path for path in (NATIVE / "manycore/programs").glob("*.c")}
    sources |= {f"mpi-{path.stem}": path for path in (NATIVE / "manycore/mpi/examples").glob("*.c")}
    of_others = {"wherry", "npb"} | {name for row in ROWS for name in re.findall(r"`(wherry|npb)", row[0])}
    listed = {row[0].strip("`") for row in ROWS if row[0].strip("`").split("-")[0] not in of_others}
    assert listed - {*INSTALLED, "lmp", "gmx_mpi"} == set(sources)
    for name, source in sources.items():
        (row,) = arguments(name)
        for form in row.split(" or "):
            expected = f"{name.removeprefix('mpi-')} {form}".strip() + ":"
            assert expected in head(source), (source, expected)


def test_programs_of_the_distribution_are_listed_with_their_packages() -> None:
    for program, package in INSTALLED.items():
        if not program.startswith("mpi"):  # launchers
            assert arguments(program) == [package]
