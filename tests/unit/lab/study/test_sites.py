"""Throttled time of ranks in the study `multi-site`."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.lab.study import sites


def test_throttling_by_nested_cgroups_counts_once(tmp_path: Path) -> None:
    """Quotas of a node and of its host throttle a rank at the same time; earlier throttling is subtracted."""

    def look(host: dict[str, int]) -> dict[Path, float]:
        for group, nanoseconds in host.items():
            (tmp_path / group).mkdir(parents=True, exist_ok=True)
            (tmp_path / group / "cpu.stat").write_text(f"nr_periods 9\nthrottled_time {nanoseconds}\n")
        return sites._read_host_throttled(tmp_path)

    before = {"a1": look({".": 7 * 10**9, "idle": 0}), "b1": {}}
    after = {"a1": look({".": 10 * 10**9, "node": 2_500_000_000}), "b1": {Path("node"): 1.0}}
    assert sites.throttled_between(before, after) == pytest.approx(3.0 + 1.0)
    assert sites.throttled_between(after, after) == 0.0
