"""Consistency of the documents, and tests of the scripts that check them. `make docs` builds the site."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from fakestudy import make, run

from wherry.lab.study import render
from wherry.lab.study.catalog import STUDIES
from wherry.lab.study.experiment import Study
from wherry.lab.study.papers import reference_values
from wherry.lab.study.requirements import INSTALLED
from wherry.lab.study.results import Results

TOP = Path(__file__).resolve().parents[3]


def script(name: str) -> ModuleType:
    """Loads a script of the checkout as a module."""
    loader = SourceFileLoader(name.replace("-", "_"), str(TOP / "scripts" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def pages_of(nav: list[Any]) -> list[str]:
    """The pages that mkdocs.yml lists, in order."""
    faults_found = []
    for item in nav:
        entries = list(item.values()) if isinstance(item, dict) else [item]
        for entry in entries:
            faults_found += pages_of(entry) if isinstance(entry, list) else [entry]
    return faults_found


def test_the_site_lists_every_page_once() -> None:
    listed = pages_of(yaml.safe_load((TOP / "mkdocs.yml").read_text())["nav"])
    existing = [str(page.relative_to(TOP / "docs")) for page in (TOP / "docs").rglob("*.md")]
    of_tiles = [str(page.relative_to(TOP)) for page in (TOP / "tiles/docs").glob("*.md")]
    assert sorted(listed) == sorted([*existing, *of_tiles, "CONTRIBUTING.md", "CHANGELOG.md"])


def test_the_index_of_design_has_each_page_with_a_line() -> None:
    index = (TOP / "docs/design/index.md").read_text()
    listed = re.findall(r"^- \[(\d{4}) [^]]+\]\(([^)]+)\): \S", index, re.MULTILINE)
    pages = [*(TOP / "docs/design").glob("0*.md"), *(TOP / "tiles/docs").glob("0*.md")]
    assert [(TOP / "docs/design" / page).resolve() for _, page in listed] == sorted(pages, key=lambda page: page.name)
    assert all(Path(page).name.startswith(f"{number}-") for number, page in listed)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one test and one benchmark."""
    for file, text in (
        ("tests/unit/test_x.py", "class A:\n    def test_inner(self): ...\ndef test_holds(): ...\ndef helper(): ...\n"),
        ("src/wherry/lab/bench/speed.py", "class Speed(Benchmark):\n    name = 'speed'\n    lasts = 'long'\n"),
    ):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    (tmp_path / "docs").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("item", "fault"),
    [
        ("- **A1** It holds.\n  `tests/unit/test_x.py::test_holds`,\n  `tests/unit/test_x.py::test_inner`", ""),
        ("- **A1** It is quick. `wherry bench run speed`", ""),
        ("- **A1** It is so. (not enforced by a test)", ""),
        ("- **A1** It holds. `tests/unit/test_x.py::test_gone`", "there is no tests/unit/test_x.py::test_gone"),
        ("- **A1** It holds. `tests/unit/test_x.py::helper`", "there is no tests/unit/test_x.py::helper"),
        ("- **A1** It holds. `tests/unit/test_x.py`", "there is no tests/unit/test_x.py"),
        ("- **A1** It holds. `tests/system/test_y.py::test_holds`", "test_holds is in tests/unit/test_x.py"),
        ("- **A1** It is quick. `wherry bench run sped`", "there is no benchmark sped"),
        ("- **A1** It holds.", "A1 names a test or benchmark, or is marked"),
        ("- **A1** It holds. `wherry bench run speed` (not enforced by a test)", "not both"),
        ("- It holds. `wherry bench run speed`", "a promise begins with its name"),
        ("- **A1** One. `wherry bench run speed`\n- **A1** Two. `wherry bench run speed`", "two promises A1"),
        ("Nothing.", "no promise was found"),
    ],
)
def test_specification_checker_finds_faults(checkout: Path, item: str, fault: str) -> None:
    (checkout / "docs/specification.md").write_text(f"# What it promises\n\n## Group\n\n{item}\n")
    faults_found = list(script("check-specification").faults(checkout))
    assert len(faults_found) == bool(fault), faults_found
    assert not fault or fault in faults_found[0]


def test_specification_checker_finds_tests_that_the_security_list_lacks(checkout: Path) -> None:
    rows = [f"| 1.{n} | so | `tests/unit/test_x.py::test_{name}` |" for n, name in enumerate(("holds", "gone"))]
    (checkout / "docs/security.md").write_text("\n".join(rows))
    found = list(script("check-specification").faults_of_security(checkout))
    assert found == ["docs/security.md:2: there is no tests/unit/test_x.py::test_gone"]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<p id="here"><a href="#here">1</a><a href="other.html#there">2</a><a href="sub/">3</a>', ""),
        ('<a href="https://example.org/">elsewhere</a>', ""),
        ('<a href="gone.html">1</a>', "index.html: gone.html leads to no file"),
        ('<a href="other.html#gone">1</a>', "index.html: other.html#gone leads to no anchor"),
        ('<a href="#gone">1</a>', "index.html: #gone leads to no anchor"),
        ('<script src="https://example.org/x.js"></script>', "index.html loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "index.html loads //example.org/x.css"),
    ],
)
def test_site_checker_finds_broken_links(tmp_path: Path, body: str, fault: str) -> None:
    (tmp_path / "sub").mkdir()
    for name, text in (("index.html", body), ("other.html", '<h2 id="there">'), ("sub/index.html", "<p>")):
        (tmp_path / name).write_text(text)
    wrong, elsewhere = script("check-site").check(tmp_path)
    assert wrong == ([fault] if fault else [])
    assert ("https://example.org/" in elsewhere) == ("elsewhere" in body)


# docs/papers.md has a row for each published value that the code has, in the section of its paper.


SECTIONS = {
    reference_values.XEN: "Xen migration and MPI",
    reference_values.KVM: "Communication in a private cloud",
    reference_values.WIDE: "MPI over several sites",
    "": "Processes that move on a lightweight manycore",
}
"""Paper of a report's table, by its source -> section of docs/papers.md."""


def rows_of_section(title: str) -> list[list[str]]:
    """The cells of the table of a section, its head first."""
    text = (TOP / "docs/papers.md").read_text()
    (section,) = (part for part in text.split("\n## ")[1:] if part.startswith(f"{title}\n"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line]


def missing_rows(found: Sequence[tuple[str, str]], study: str) -> list[tuple[str, str]]:
    """Pairs of a published value and its paper's source without a row in the section of that paper that names the
    study."""
    missing = []
    for published, source in found:
        head, *rows = rows_of_section(SECTIONS[source])
        named = (f"`{study}`" in f"{head[2]} {row[2]}" for row in rows if row[1] == published)
        missing += [] if any(named) else [(published, source)]
    return missing


@pytest.mark.parametrize("kind", STUDIES, ids=lambda kind: kind.name)
def test_every_published_value_has_its_row(kind: type[Study], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without KVM, where virtual machines are compared with other runs."""
    found: list[tuple[str, str]] = []
    table = reference_values.table

    def noting(rows: Sequence[reference_values.PaperComparison], source: str = "") -> Any:
        found.extend((row.published, source) for row in rows)
        return table(rows, source)

    monkeypatch.setattr(reference_values, "table", noting)
    for lacks in ({}, {"kvm": "no KVM here"}):
        study = kind(False, lacks)
        study.page(Results(Path("/nonexistent"), study, {"lacks": lacks, "sessions": [], "repetitions": 1}))
    assert found or kind.name in ("migration-cost", "packing", "mixed", "topology"), "its question is ours"
    assert missing_rows(found, kind.name) == []


def test_a_row_of_another_paper_or_study_does_not_count() -> None:
    """The value 1.09 is of the paper on Xen; NetPIPE's is measured by `colocated`, HPL's is not."""
    for published, source, study, there in (
        ("1.09", reference_values.XEN, "xen-migration", True),
        ("1.09", reference_values.XEN, "colocated", False),
        ("1.09", reference_values.WIDE, "xen-migration", False),
        ("180 / 1200 = 0.15", reference_values.XEN, "colocated", True),
        ("0 to 10 %", reference_values.WIDE, "multi-site", True),
        ("0 to 10 %", reference_values.KVM, "nic-degradation", False),
    ):
        assert (missing_rows([(published, source)], study) == []) == there, (published, source, study)


def test_the_page_on_studies_leads_to_the_table() -> None:
    begin = (TOP / "docs/studies.md").read_text().split("```")[0]
    assert "](papers.md)" in begin, "before anything else"


# docs/programs.md names every program of studies, benchmarks and tiles, with the arguments that its source gives.


NATIVE, TILES = TOP / "native", TOP / "tiles/native"
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
    files = [*(NATIVE / "bench").glob("*.c"), *(TILES / "bench").glob("*.c")]
    sources = sorted(file for file in files if "int main(" in file.read_text())
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
    sources = {path.stem: path for path in (TILES / "programs").glob("*.c")}
    sources |= {f"mpi-{path.stem}": path for path in (TILES / "mpi/examples").glob("*.c")}
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


# Example reports in the documents: publication by `scripts/example-reports`, and the present ones.


@pytest.fixture(scope="module")
def example_reports() -> ModuleType:
    return script("example-reports")


def test_those_that_are_there_are_small_and_listed(example_reports: ModuleType) -> None:
    assert example_reports.faults() == []
    for page in (TOP / "docs" / "reports").glob("*.html"):
        text = page.read_text()
        assert "Made with --quick" in text and "runs are missing" not in text, page.name
        assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp|src)/", text), f"{page.name} has a path of its machine"


def test_a_report_is_published_with_paths_of_the_checkout(example_reports: ModuleType, tmp_path: Path) -> None:
    results = make(tmp_path / "made")
    run(results)
    page = render.write(results)[0]
    page.write_text(page.read_text().replace("</body>", "/opt/R&amp;D/build/native/bin/npb-ep W</body>"))
    kept = example_reports.publish(results.directory, "colocated", tmp_path / "reports", Path("/opt/R&D"))
    assert kept == tmp_path / "reports" / "colocated.html"
    assert "\nbuild/native/bin/npb-ep W" in kept.read_text() and "/opt/" not in kept.read_text()
    listed = example_reports.index(tmp_path / "reports")
    assert re.search(r"\| `colocated` \| \[.+\]\(colocated.html\) \| \d{4}-\d\d-\d\d \| 0 s \|", listed)
    assert "multi-site" not in listed, "it has no report there"


def test_a_large_one_is_not_published(example_reports: ModuleType, tmp_path: Path) -> None:
    (tmp_path / render.PAGE).write_text("x" * (example_reports.LARGEST + 1))
    with pytest.raises(ValueError, match="the report of colocated has 400 KiB"):
        example_reports.publish(tmp_path, "colocated", tmp_path / "reports")
    assert not (tmp_path / "reports").exists(), "the one before would still be there"


SESSION = "2026-11-30 12:00:00 UTC, for {} s, load before 0.1 0.1 0.1"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (SESSION.format(299), ""),
        (SESSION.format(300), "took 300 s, longer than 300"),
        (f"{SESSION.format(200)} {SESSION.format(150)}", "took 350 s, longer than 300"),
        ("no session", "does not say how long its run took"),
        (f"Made by an earlier version, whose ranks ... {SESSION.format(9)}", "is of an earlier version"),
        ("x" * (401 << 10), "has 401 KiB, more than 400"),
        (None, "is missing"),
    ],
)
def test_a_study_without_a_right_report_is_a_fault(
    example_reports: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, fault: str
) -> None:
    monkeypatch.setattr(example_reports, "NAMES", ["colocated"])
    if text is not None:
        (tmp_path / "colocated.html").write_text(text)
    (tmp_path / "index.md").write_text(example_reports.index(tmp_path))
    again = "make it: sudo scripts/example-reports colocated"
    assert example_reports.faults(tmp_path) == ([f"the report of colocated {fault}; {again}"] if fault else [])


def test_what_is_of_no_study_is_a_fault(
    example_reports: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone.html").write_text("x")
    monkeypatch.setattr(example_reports, "NAMES", [])
    assert example_reports.faults(tmp_path) == [
        "gone.html is of no study",
        "index.md does not list these reports; scripts/example-reports STUDY writes it",
    ]


def test_an_unknown_study_is_refused_before_any_is_run(
    example_reports: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example_reports.main(["colocate"]) == 2
    assert f"did you mean {STUDIES[0].name}?" in capsys.readouterr().err
