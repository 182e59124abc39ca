"""Collectives by sites in SimGrid's SMPI: the same code, and every result that of the simulated library's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.lab.bench.collectives import read_cases
from wherry.lab.bench.smpi import SELECTORS, TwoSites, obstacle, simulate

APART = TwoSites(ranks=8, seed=3, latency=0.01, bandwidth=1e9)


@pytest.mark.parametrize("selector", SELECTORS)
def test_ranks_in_the_simulator_go_by_sites(selector: str, tmp_path: Path) -> None:
    if missing := obstacle():
        pytest.skip(f"{missing}: make setup-simgrid")
    rows = {
        by_sites: read_cases(simulate(APART, selector, ["5", "1", "7"], tmp_path, by_sites=by_sites, timeout=300))
        for by_sites in (False, True)
    }
    assert all(row.get("ok", True) for found in rows.values() for row in found), "a result is not the library's own"
    own, ours = ({(row["what"], row["bytes"]): row["ms"] for row in found} for found in rows.values())
    assert set(own) == set(ours) and len(ours) == 26
    assert {what for (what, size), ms in ours.items() if size <= 8 and 10 <= ms <= 12} == {what for what, _ in ours}
    assert own["allreduce", 8] >= 1.9 * ours["allreduce", 8]
