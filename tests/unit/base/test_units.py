"""Units and ids."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wherry.base import ids
from wherry.base.ids import new_id
from wherry.base.units import format_duration, format_rate, format_size, parse_duration, parse_size

TOP = Path(__file__).resolve().parents[3]


def test_ids_sort_by_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of one millisecond, and when the clock is set back."""
    made = [new_id("mv") for _ in range(100)]
    monkeypatch.setattr(ids.time, "time", lambda: 1.0)
    made += [new_id("mv") for _ in range(100)]
    assert made == sorted(set(made)) and len({len(one) for one in made}) == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("1B", 1), ("1KB", 10**3), ("1kB", 10**3), ("1MB", 10**6), ("1GB", 10**9), ("1TB", 10**12), ("1.5TB", 15 * 10**11)]
    + [("1KiB", 2**10), ("1MiB", 2**20), ("1GiB", 2**30), ("1TiB", 2**40)],
)
def test_sizes_have_decimal_and_binary_units_which_the_reference_names(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert re.search(rf"\b{text.lstrip('1.5')}\b", (TOP / "docs/reference/files.md").read_text())


def test_units_are_parsed_and_formatted() -> None:
    assert (parse_size("1.5GB"), parse_size("512 MiB"), parse_duration("20ms")) == (1_500_000_000, 2**29, 0.02)
    assert (format_size(1536), format_size(12), format_size(3 * 2**40)) == ("1.5 KiB", "12 B", "3.0 TiB")
    assert (format_rate(943e6), format_rate(999_600)) == ("943 Mbit/s", "1 Mbit/s")
    assert (format_duration(0.0613), format_duration(83.2), format_duration(5e-6)) == ("61.3 ms", "83.2 s", "5 us")
