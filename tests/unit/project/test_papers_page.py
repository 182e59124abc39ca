"""docs/papers.md has a row for each published value that the code has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from wherry.lab.study.catalog import STUDIES
from wherry.lab.study.experiment import Study
from wherry.lab.study.papers import reference_values
from wherry.lab.study.results import Results

PAGE = Path(__file__).resolve().parents[3] / "docs" / "papers.md"


@pytest.mark.parametrize("kind", STUDIES, ids=lambda kind: kind.name)
def test_every_published_value_has_its_row(kind: type[Study], monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[reference_values.PaperComparison] = []
    table = reference_values.table

    def noting(rows: Sequence[reference_values.PaperComparison], *source: Any) -> Any:
        found.extend(rows)
        return table(rows, *source)

    monkeypatch.setattr(reference_values, "table", noting)
    study = kind(quick=False)
    study.page(Results(Path("/nonexistent"), study, {"lacks": {}, "sessions": [], "repetitions": 1}))
    assert found or kind.name in ("migration-cost", "packing", "mixed", "topology"), "its question is ours"
    page = PAGE.read_text()
    assert [row.published for row in found if f"| {row.published} |" not in page] == []
    assert f"`{kind.name}`" in page or not found, "the page names the study"
