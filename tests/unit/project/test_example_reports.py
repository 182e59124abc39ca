"""Example reports in the documents: publication by `scripts/example-reports`, and the present ones."""

from __future__ import annotations

import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from fakestudy import make, run

from wherry.lab.study import render
from wherry.lab.study.catalog import STUDIES

TOP = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("example_reports", str(TOP / "scripts" / "example-reports"))
    spec = importlib.util.spec_from_loader("example_reports", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_those_that_are_there_are_small_and_listed(script: ModuleType) -> None:
    assert script.faults() == []
    for page in (TOP / "docs" / "reports").glob("*.html"):
        text = page.read_text()
        assert "Made with --quick" in text and "runs are missing" not in text, page.name
        assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp|src)/", text), f"{page.name} has a path of its machine"


def test_a_report_is_published_with_paths_of_the_checkout(script: ModuleType, tmp_path: Path) -> None:
    results = make(tmp_path / "made")
    run(results)
    page = render.write(results)[0]
    page.write_text(page.read_text().replace("</body>", "/opt/R&amp;D/build/native/bin/npb-ep W</body>"))
    kept = script.publish(results.directory, "colocated", tmp_path / "reports", Path("/opt/R&D"))
    assert kept == tmp_path / "reports" / "colocated.html"
    assert "\nbuild/native/bin/npb-ep W" in kept.read_text() and "/opt/" not in kept.read_text()
    listed = script.index(tmp_path / "reports")
    assert re.search(r"\| `colocated` \| \[.+\]\(colocated.html\) \| \d{4}-\d\d-\d\d \|", listed)
    assert "multi-site" not in listed, "it has no report there"


def test_a_large_or_unknown_one_is_a_fault(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / render.PAGE).write_text("x" * (script.LARGEST + 1))
    with pytest.raises(ValueError, match="the report of colocated has 300 KiB"):
        script.publish(tmp_path, "colocated", tmp_path / "reports")
    assert not (tmp_path / "reports").exists(), "the one before would still be there"
    (tmp_path / "gone.html").write_text("x" * (script.LARGEST + 1))
    (tmp_path / "index.md").write_text(script.index(tmp_path))
    (tmp_path / render.PAGE).unlink()
    assert script.faults(tmp_path) == ["gone.html is of no study", "gone.html has more than 300 KiB"]
    (tmp_path / "index.md").write_text("other")
    assert "index.md" in script.faults(tmp_path)[-1]


def test_an_unknown_study_is_refused_before_any_is_run(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["colocate"]) == 2
    assert f"did you mean {STUDIES[0].name}?" in capsys.readouterr().err
