"""Consistency of the documents, and tests of the scripts that check them. `make docs` builds the site."""

from __future__ import annotations

import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

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
    assert sorted(listed) == sorted([*existing, "CONTRIBUTING.md", "CHANGELOG.md"])


def test_the_index_of_design_has_each_page_with_a_line() -> None:
    index = (TOP / "docs/design/index.md").read_text()
    listed = re.findall(r"^- \[(\d{4}) [^]]+\]\(([^)]+)\): \S", index, re.MULTILINE)
    pages = sorted(page.name for page in (TOP / "docs/design").glob("0*.md"))
    assert [page for _, page in listed] == pages
    assert all(page.startswith(f"{number}-") for number, page in listed)


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
