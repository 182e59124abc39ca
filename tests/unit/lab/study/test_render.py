"""Statements of reports about the measurement: sessions, machines, load, tests, warm-up runs, commands."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest
from fakestudy import FakeStudy, make, page_text, run

from wherry.base.errors import Refused
from wherry.lab.environment import environment
from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import Estimate, median, ratio
from wherry.lab.study import render
from wherry.lab.study.catalog import STUDIES, find
from wherry.lab.study.execution import describe
from wherry.lab.study.experiment import Page, Study
from wherry.lab.study.levels import Value
from wherry.lab.study.papers import reference_values
from wherry.lab.study.requirements import emulated_combinations, unavailable_features, versions
from wherry.lab.study.results import Results, Run


def test_interval_of_few_samples_is_called_a_range() -> None:
    """The range of five samples has a coverage of 93.75 %, which is less than 95 %."""
    data = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    for few in (median(data[:5]), ratio(data, data[:5])):
        assert few.method == "range" and few.count == 5
    assert median(data).method == "order statistics" and ratio(data, data).method == "bootstrap"


def test_report_is_written_as_html_pdf_and_csv(tmp_path: Path) -> None:
    results = make(tmp_path, repetitions=2)
    run(results)
    page, pdf, summary = render.write(results)
    assert page.read_text() == page_text(results) and summary.read_text().count("\n") > 1
    assert pdf.read_bytes().startswith(b"%PDF") and pdf.stat().st_size > 10_000


def test_report_without_pango_has_html_and_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name == "weasyprint":
                raise OSError("cannot load library 'libpango-1.0-0'")

    results = make(tmp_path, repetitions=2)
    run(results)
    for name in [name for name in sys.modules if name.partition(".")[0] == "weasyprint"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Without(), *sys.meta_path])
    with pytest.raises(Refused, match="libpango") as refused:
        render.write(results)
    assert "apt-get install" in refused.value.next and (tmp_path / "report.html").exists()
    assert (tmp_path / "summary.csv").exists() and not (tmp_path / "report.pdf").exists()


def test_report_states_the_number_of_sessions(tmp_path: Path) -> None:
    results = make(tmp_path, repetitions=2)
    run(results)
    assert "one session on one machine" in page_text(results) and "was not the same" not in page_text(results)
    again = make(tmp_path, repetitions=4)
    again.manifest["sessions"][0]["before"]["governor"] = "powersave"
    run(again)
    text = page_text(again)
    assert "made in 2 sessions" in text and "one session" not in text
    assert "was not the same in all sessions. governor: powersave; then " in text
    run(again)  # a session without remaining runs
    assert len(again.manifest["sessions"]) == 3 and "made in 2 sessions" in page_text(again)


def with_machines(directory: Path, unavailable: dict[str, str]) -> tuple[Study, str]:
    study = find("colocated")(False, unavailable)
    results = Results.create(directory, study, 1)
    for combination in study.combinations():
        values = [Value("latency_median", 1e-6, "s", 1.0)]
        results.add(Run(results.next_number(), 0, False, True, combination, 0.0, 1.0, values=values))
    return study, page_text(results)


def test_report_states_that_vms_are_emulated(tmp_path: Path) -> None:
    study, text = with_machines(tmp_path / "tcg", {"kvm": "no /dev/kvm"})
    assert {combination["where"] for combination in emulated_combinations(study)} == {
        f"vm-one-host{kind}" for kind in ("", "-e1000", "-sums", "-e1000-sums")
    }
    assert "processors of virtual machines were emulated (no /dev/kvm)" in text
    assert "emulated (TCG): no /dev/kvm" in text
    study, text = with_machines(tmp_path / "kvm", {})
    assert not emulated_combinations(study) and "were emulated" not in text and "run by KVM" in text
    study, text = with_machines(tmp_path / "none", {"kvm": "no /dev/kvm", "vm": "no libvirt"})
    assert not emulated_combinations(study) and "were emulated" not in text and "none: no libvirt" in text
    assert not emulated_combinations(find("colocated")(True, {"kvm": "no /dev/kvm"})), "not with --quick"


def test_load_remark_separates_the_study_from_other_programs(tmp_path: Path) -> None:
    results = make(tmp_path)
    run(results)
    results.manifest["sessions"][0]["before"] |= {"cpus": "2", "load": "0.10 0.10 0.10"}
    for one in results.runs:
        one.load = 3.5
    text = page_text(results)
    assert "at the end of 8 of 8 runs" in text and "own ranks are in it" in text and "something else ran" not in text
    results.manifest["sessions"][0]["before"]["load"] = "2.75 1.00 1.00"
    assert "the load of the last minute was 2.75 on 2 CPUs, without anything of this study" in page_text(results)


class Long(FakeStudy):
    """A page with two long tables, of which one is `main` and has `tests` significance tests."""

    def page(self, results: Results) -> Page:
        rows = [(str(n), "differs, p = 0.03") for n in range(40)]
        return Page([Table("Behind", ("n", "test"), rows), Table("Before", ("n", "test"), rows, main=True)])


def test_main_table_is_never_folded(tmp_path: Path) -> None:
    text = page_text(Results.create(tmp_path, Long(quick=False), 1))
    assert "<h2>Before</h2>" in text and "<h2>Behind</h2>" not in text and "<summary>Behind" in text
    assert "80 differences were tested" in text and "by chance alone 4 of so many" in text


def test_published_values_without_a_measurement_are_only_counted() -> None:
    rows = [
        reference_values.PaperComparison(
            "ratio", "1.09", "Figure 5", Estimate(1.1, 1.0, 1.2, 9, "bootstrap"), "the ratio"
        ),
        reference_values.PaperComparison("other", "1.04", "Figure 8", None, "the ratio"),
    ]
    table = reference_values.table(rows, "a paper")
    assert table.main and [row[0] for row in table.rows] == ["ratio", "and 1 more"]
    assert table.rows[1][3] == "not measured"
    assert len(reference_values.table(rows[:1]).rows) == 1


def test_figure_states_how_many_values_are_out_of_range() -> None:
    def texts_of(value: float) -> str:
        points = {"virtio": {1.0: Estimate(value, value, value, 9, "range"), 2.0: Estimate(5, 5, 5, 9, "range")}}
        axes = figures.estimates(points, "degradation, %", 100).as_figure().axes[0]
        return " ".join(text.get_text() for text in axes.texts)

    assert "1 values are below -100 and not shown" in texts_of(-250.0)
    assert texts_of(-20.0) == ""


@pytest.mark.parametrize("kind", STUDIES, ids=lambda kind: kind.name)
def test_interrupted_study_has_a_report(tmp_path: Path, kind: type[Study]) -> None:
    """Ctrl-C may come before a figure has its first value or its second curve."""
    study = kind(True)
    results = Results.create(tmp_path, study, 1)
    assert "no run counts" in page_text(results)
    values = [Value(name, 1e-6, "s", 1.0) for name in ("latency_median", "latency_mean")] + [Value("seconds", 1.0, "s")]
    results.add(Run(results.next_number(), 0, False, True, study.combinations()[-1], 0.0, 1.0, values=values))
    assert "are missing" in page_text(results)
    results.add(Run(results.next_number(), 0, False, True, study.combinations()[1], 0.0, 1.0, values=values))
    assert "are missing" in page_text(results)


def test_report_lists_one_command_for_each_combination(tmp_path: Path) -> None:
    results = make(tmp_path)

    def measure_run(_study: Any, _bench: Any, combination: Any, directory: Path) -> list[Value]:
        (directory / "command").write_text(f"A=1 NPopenmpi -o {directory}/np.out\nsecond {combination['size']}\n")
        return [Value("seconds", 1.0, "s")]

    results.study.measure = measure_run.__get__(results.study)  # type: ignore[attr-defined]
    run(results)
    text = page_text(results)
    for size in ("small", "large"):
        assert text.count(f"A=1 NPopenmpi -o RUN/np.out; second {size}<") == 1
    assert str(tmp_path) not in text


def test_environment_has_versions_of_criu_qemu_and_vpns() -> None:
    findings = [
        {"name": "criu", "health": "ok", "text": "4.2 (/usr/sbin/criu)"},
        {"name": "image", "health": "limited", "text": "no nodes of kind vm: no image"},
        {"name": "tiles", "health": "limited", "text": "no"},
    ]
    assert versions(findings) == {"criu": "4.2 (/usr/sbin/criu)", "image": "no nodes of kind vm: no image"}
    assert {"vm", "image", "tiles"} <= set(unavailable_features(findings)) and "criu" not in unavailable_features(
        findings
    )
    assert "GCC" in environment()["compiler"] or "clang" in environment()["compiler"]


def test_only_full_studies_have_warmups_and_reports_state_it(tmp_path: Path) -> None:
    warmed = {kind.name for kind in STUDIES if kind(False).default_warmups()}
    assert {kind.name for kind in STUDIES} - warmed == {"packing", "mixed", "topology"}, (
        "whose clusters are made for each run"
    )
    assert not any(kind(True).default_warmups() for kind in STUDIES)
    results = make(tmp_path / "without")
    run(results)
    assert "without runs to warm up" in page_text(results)
    study = FakeStudy(quick=False)
    study.warmups = 1
    results = Results.create(tmp_path / "with", study, 1)
    run(results)
    assert "after 2 runs to warm up, which do not count" in page_text(results)


@pytest.mark.parametrize("kind", STUDIES, ids=lambda kind: kind.name)
def test_every_study_can_be_described_before_it_is_run(kind: type[Study]) -> None:
    whole, quick = describe(kind(False)), describe(kind(True))
    assert (whole["seed"], whole["warmups"], quick["warmups"]) == (20_061, kind.warmups, 0)
    assert whole["lasts"] and quick["lasts"] and whole["lasts"] != quick["lasts"]
    assert whole["verified"] and whole["tables"]
