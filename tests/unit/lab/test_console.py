"""Tables, charts and progress in a terminal, a pipe and a file."""

from __future__ import annotations

import pytest

from wherry.lab.report import console
from wherry.lab.report.console import Progress, bars_of, print_table
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median

TABLE = Table("Times", ("what", "seconds"), [("one", "1 [1, 2] n=3"), ("other", "4 [2, 5] n=3")])
CHART = [median([1.0, 1.0, 2.0]), median([2.0, 4.0, 5.0])]


def test_bars_are_to_one_scale_with_median_and_interval() -> None:
    assert bars_of([Estimate(4, 2, 8, 3, "range"), Estimate(8, 6, 10, 3, "range")], width=11) == [
        "==[=|---]",
        "======[=|-]",
    ]
    assert bars_of([Estimate(0, 0, 0, 3, "range")]) == [""], "HPL prints no time for the smallest problems"
    assert bars_of([]) == []


def test_chart_is_beside_the_table_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(TABLE, CHART)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("other")]
    assert "4 [2, 5] n=3" in line and line.endswith("]") and line.isascii()


@pytest.mark.parametrize(("columns", "lines"), [("120", 1), ("40", 2)])
def test_chart_is_below_the_table_where_the_terminal_is_narrow(
    columns: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("COLUMNS", columns), ("FORCE_COLOR", "1"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    print_table(TABLE, CHART)
    out = capsys.readouterr().out
    assert sum(line.strip().startswith("other") for line in out.splitlines()) == lines
    assert "=|" in out and "…" not in out


def test_without_a_terminal_progress_is_a_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("nothing yet") as progress:
        progress.say("making a cluster")
        progress.note("many times a second")
        progress(1, 2, "first run", 3.0)
    assert capsys.readouterr().err == "making a cluster\nrun 1 of 2, first run, about 3.0 s left\n"


def test_on_a_terminal_progress_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(console.sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("nothing yet") as progress:
        progress.note("HPL, 3 of 48")
        progress._bar and progress._bar.refresh()
        progress(1, 2, "first run", 3.0)
    said = capsys.readouterr().err
    assert "HPL, 3 of 48" in said and "1/2" in said and "about 3.0 s left" in said
