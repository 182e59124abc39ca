"""Sizes of studies by name: accepted values, their use in a study, and the values that a directory keeps."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from wherry.base.errors import Code, Refused
from wherry.lab.study import execution, render
from wherry.lab.study.catalog import STUDIES, find
from wherry.lab.study.compare import differences
from wherry.lab.study.experiment import Study
from wherry.lab.study.papers.multi_site import MultiSite
from wherry.lab.study.papers.multi_site_design import combination_of
from wherry.lab.study.papers.topology_design import PROGRAMS
from wherry.lab.study.papers.xen_migration import XenMigration
from wherry.lab.study.papers.xen_migration_design import HPL_N, LARGEST, SP_AFTER, SP_CLASS
from wherry.lab.study.results import Results
from wherry.lab.study.settings import BYTES, NPB_CLASSES, NUMBERS, SECONDS, Setting, parse_words
from wherry.lab.study.sites import machine_cpus

NO_KVM = {"kvm": "no KVM here"}


@pytest.mark.parametrize("kind", STUDIES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("quick", [True, False])
def test_what_is_shown_can_be_set(kind: type[Study], quick: bool) -> None:
    """And setting every default changes nothing."""
    study = kind(quick)
    typed = {setting.name: setting.shown(study.value(setting)) for setting in kind.settings}
    assert len(typed) == len(kind.settings), "names are unique"
    again = kind(quick, given=typed)
    assert again.changed_settings() == {} and again.combinations() == study.combinations()
    assert all(setting.text and kind(False, paper=True).value(setting) is not None for setting in kind.settings)


def test_sizes_reach_what_is_run() -> None:
    words = ["hpl.n=8000", "sp.class=a", "sp.after=60s", "netpipe.largest=64KiB"]
    study = XenMigration(False, given=parse_words(words))
    assert study.problem("hpl3").n == 8000 and study.problem("hpl6").n == 3000
    assert (study.value(SP_CLASS), study.after("sp"), study.value(LARGEST)) == ("A", 60.0, 65536)
    assert study.changed_settings()["hpl.n"] == ("8000", "3000")
    assert "class A, a move 60 s" in "".join(level.text for level in study.factors()[0].levels)


def test_the_papers_sizes() -> None:
    study = XenMigration(False, paper=True)
    assert (study.value(HPL_N), study.value(SP_AFTER)) == (8000, 60.0)
    assert XenMigration(False, paper=True, given={"hpl.n": "100"}).value(HPL_N) == 100, "the given value counts"


@pytest.mark.parametrize(
    ("ranks", "cpus", "one", "two", "near"), [("4", 2, 4, 9, 9), ("32", 13, 25, 64, 64), ("1", 2, 1, 4, 9)]
)
def test_ranks_of_two_sites_have_a_host_each(ranks: str, cpus: int, one: int, two: int, near: int) -> None:
    """BT's, which are a square number, too; and those of one site's speedup, as many as the CPUs carry."""
    study = MultiSite(False, machine_cpus(cpus), given={"ranks": ranks})
    assert [study.ranks(combination_of("bt", "nodes", where)) for where in ("one", "two")] == [one, two]
    assert [study.ranks(combination_of("cg", "nodes", where)) for where in ("one", "two")] == [
        int(ranks),
        2 * int(ranks),
    ]
    hosts = study.hosts()
    assert len(hosts.near) == near and len(hosts.near) + len(hosts.far) >= max(two, 2 * int(ranks))
    for combination in study.combinations():
        used = study.hosts(combination["how"]).for_ranks(study.ranks(combination), combination["where"] == "two")
        assert len(set(used)) == study.ranks(combination)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hpl.m=3"], "no setting hpl.m.*did you mean hpl.n"),
        (["sp.class=F"], "sp.class=F is not valid.*one of S, W, A"),
        (["sp.clas=B"], "no setting sp.clas.*did you mean sp.class[?]"),
        (["class=B"], "no setting class.*did you mean sp.class or vm.sp.class[?]"),
        (["SP.Class=B"], "no setting SP.Class.*did you mean sp.class[?]"),
        (["n=3"], "no setting n .*did you mean linpack.n or hpl.n or .*[?]"),
        (
            ["move.after=60s"],
            "did you mean hpl.after or sp.after or shallow.after or vm.hpl.after or vm.sp.after[?]",
        ),
        (["hpll.runs=3"], "no setting hpll.runs.*did you mean hpl.runs[?]"),
        (["linpack.n=20001"], "least value is 1, the largest 20000"),
        (["hpl.n=-3"], "hpl.n=-3 is not valid.*least value is 1"),
        (["hpl.n=many"], "hpl.n=many is not valid"),
        (["hpl.n=1.5"], "hpl.n=1.5 is not valid"),
        (["sp.after=soon"], "sp.after=soon is not valid"),
        (["sp.after=nan"], "sp.after=nan is not valid"),
        (["sp.after=inf"], "sp.after=inf is not valid"),
        (["netpipe.largest=3furlongs"], "netpipe.largest=3furlongs is not valid"),
        (["hpl.n"], "NAME=VALUE"),
        (["=3"], "NAME=VALUE"),
    ],
)
def test_a_bad_one_is_named(words: list[str], said: str) -> None:
    with pytest.raises(Refused) as refused:
        find("xen-migration")(False, given=parse_words(words))
    assert refused.value.code is Code.USAGE
    assert re.search(said, f"{refused.value.what} {refused.value.why}")


def test_the_command_after_a_wrong_name_is_whole() -> None:
    with pytest.raises(Refused) as refused:
        find("xen-migration")(False, given=parse_words(["sp.clas=B"]))
    assert refused.value.next == "wherry study run xen-migration --set sp.class=B"
    with pytest.raises(Refused) as refused:
        find("xen-migration")(False, given=parse_words(["sp.class=D"]))
    assert refused.value.next == "wherry study run xen-migration --set sp.class=C"


SIZE = Setting("size", "a size", 8 << 20, 1 << 20, unit=BYTES, least=6_000_000, most=1 << 30)
TIME = Setting("time", "a time", 2.0, 0.2, unit=SECONDS, least=0, most=1500)
COUNT = Setting("count", "a count", 3000, 300, most=20_000)
CLASS = Setting("class", "a class", "B", "W", choices=NPB_CLASSES)


@pytest.mark.parametrize(
    ("setting", "typed", "near"),
    [
        *((CLASS, typed, near) for typed, near in (("D", "C"), ("f", "C"), ("AA", "A"), ("Z", "W"), ("R", "S"))),
        *((COUNT, typed, near) for typed, near in (("0", "1"), ("-3", "1"), ("1.6", "2"), ("8e3", "8000"))),
        *((COUNT, typed, near) for typed, near in (("1e400", "20000"), ("many", "3000"), ("3 apples", "3000"))),
        *((SIZE, typed, near) for typed, near in (("8mib", "8MiB"), ("8", "8MiB"), ("7000000", "7MB"))),
        *((SIZE, typed, near) for typed, near in (("1B", "6MB"), ("-1MB", "6MB"), ("2TiB", "1GiB"), ("64M", "64MiB"))),
        *((TIME, typed, near) for typed, near in (("60 sec", "60s"), ("-1", "0s"), ("2 hours", "1500s"), ("x", "2s"))),
        *((TIME, typed, near) for typed, near in (("nan", "2s"), ("inf", "2s"), ("90minutes", "1500s"))),
    ],
)
def test_a_wrong_value_comes_with_the_nearest_right_one(setting: Setting[Any], typed: str, near: str) -> None:
    with pytest.raises(Refused) as refused:
        setting.parse(typed)
    assert refused.value.next == f"--set {setting.name}={near}"
    assert refused.value.what == f"{setting.name}={typed} is not valid" and refused.value.why
    assert setting.shown(setting.parse(near)) == near


@given(st.text(min_size=1, max_size=12), st.sampled_from([SIZE, TIME, COUNT, CLASS, PROGRAMS]))
@settings(max_examples=examples(200))
def test_the_nearest_value_is_always_valid(typed: str, setting: Setting[Any]) -> None:
    assert setting.parse(setting.nearest(typed)) is not None


@pytest.mark.parametrize("kind", STUDIES, ids=lambda kind: kind.name)
def test_every_setting_has_limits_and_keeps_its_own(kind: type[Study]) -> None:
    """A size without an upper limit is refused by the program, minutes after it was asked for."""
    for one in kind.settings:
        assert one.text[0] == one.text[0].strip() and not one.text.endswith("."), one.name
        if one.choices:
            assert all(one.parse(one.shown(value)) == value for value in (one.full, one.quick)), one.name
            continue
        assert one.most < float("inf"), f"{one.name} has no upper limit"
        if one.unit == NUMBERS:
            assert all(one.parse(one.shown(value)) == value for value in (one.full, one.quick)), one.name
            continue
        for value in (one.full, one.quick, one.full if one.paper is None else one.paper, one.least, one.most):
            assert one.least <= value <= one.most, one.name
            assert one.parse(one.shown(value)) == value, f"{one.name}: the shown text is a text to type"


@pytest.mark.parametrize(
    ("setting", "typed"),
    [
        (Setting("time", "a time", 2.0, 0.2, unit=SECONDS, least=0, most=10_000_000), "1234567.8s"),
        (Setting("time", "a time", 2.0, 0.2, unit=SECONDS, least=0, most=10), "0.00001s"),
        (Setting("share", "of a processor", 0.2, 0.2, least=0, most=10), "0.1234567"),
        (Setting("sizes", "of messages", "1", "1", unit=NUMBERS, most=1 << 20), "1,1048576"),
    ],
)
def test_a_value_is_shown_as_it_is_typed(setting: Setting[Any], typed: str) -> None:
    assert setting.shown(setting.parse(typed)) == typed
    assert "e+" not in setting.limits()


FEW = Setting("sizes", "of messages", "1", "1", unit=NUMBERS, most=9, many=3)
POWER = Setting("ranks", "ranks", 4, 4, most=16, allowed=(1, 2, 4, 8, 16))


@pytest.mark.parametrize(
    ("setting", "typed", "why", "near"),
    [
        (FEW, "1-4", "it is 3 numbers at most, not 4", "1,4"),
        (FEW, "2,4,6,8", "it is 3 numbers at most, not 4", "2,4,6"),
        (POWER, "6", "it is one of 1, 2, 4, 8, 16", "4"),
        (POWER, "13", "it is one of 1, 2, 4, 8, 16", "16"),
        (POWER, "-3", "it is one of 1, 2, 4, 8, 16", "1"),
        (POWER, "99", "it is one of 1, 2, 4, 8, 16", "16"),
    ],
)
def test_how_many_and_which_numbers_there_may_be(setting: Setting[Any], typed: str, why: str, near: str) -> None:
    with pytest.raises(Refused) as refused:
        setting.parse(typed)
    assert (refused.value.why, refused.value.next) == (why, f"--set {setting.name}={near}")
    setting.parse(near)
    assert (FEW.limits(), POWER.limits()) == ("1 to 9, 3 at most", "1, 2, 4, 8, 16")


def test_a_directory_keeps_its_sizes(tmp_path: Path) -> None:
    """Runs of different sizes are not mixed; a directory of an earlier version has the usual ones."""
    given = {"linpack.n": "200"}
    results = Results.create(tmp_path, XenMigration(True, given=given), 1)
    assert Results.read_manifest(tmp_path)["settings"] == given
    assert results.study.changed_settings() == {"linpack.n": ("200", "1000")}
    with pytest.raises(Refused, match="holds another study") as refused:
        Results.create(tmp_path, XenMigration(True), 1)
    assert "--set linpack.n=200" in refused.value.why
    old = tmp_path / "old"
    text = Results.create(old, XenMigration(True), 1).directory.joinpath("study.json").read_text()
    (old / "study.json").write_text(text.replace('"settings": {},', "").replace('"paper": false,', ""))
    assert "settings" not in Results.read_manifest(old)
    Results.create(old, XenMigration(True), 2)


class Later(XenMigration):
    """A version in which a default is another one."""

    settings = tuple(replace(one, quick=800) if one is HPL_N else one for one in XenMigration.settings)


def test_a_later_default_relabels_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record has the value of every setting; the report has them all."""
    Results.create(tmp_path, XenMigration(True, NO_KVM, {"sp.class": "S"}), 1)
    record = Results.read_manifest(tmp_path)
    assert record["settings"] == {"sp.class": "S"}
    assert record["values"] == XenMigration(True, given={"sp.class": "S"}).values()
    assert (record["values"]["hpl.n"], record["values"]["sp.class"]) == (500, "S")
    monkeypatch.setattr(execution, "find", lambda _name: Later)
    later = execution.load(tmp_path)
    assert later.study.value(HPL_N) == later.study.lacking(hpcc="none").value(HPL_N) == 500
    assert later.study.changed_settings() == {"hpl.n": ("500", "800"), "sp.class": ("S", "W")}
    text = render.report(later).html()
    assert "n = 500, 1 x 3 ranks" in text and "n = 800, 1 x 3 ranks" not in text
    rows = {row[0]: row for table in render.report(later).details if table.title == "Settings" for row in table.rows}
    assert set(rows) == {one.name for one in Later.settings} and rows["hpl.n"][2:] == ("500", "800")
    assert execution._as_begun(tmp_path, "xen-migration", []) == (NO_KVM, record["values"]), "the next session's"
    with pytest.raises(Refused, match="holds another study") as refused:
        Results.create(tmp_path, Later(True, NO_KVM, {"sp.class": "S"}), 1)
    assert refused.value.why == "hpl.n = 500 there, 800 here"
    Results.create(tmp_path, later.study, 2)


def test_a_record_of_another_version_is_read(tmp_path: Path) -> None:
    """With the given settings alone; with a setting that is not there any more."""
    Results.create(tmp_path, XenMigration(True, given={"sp.class": "S"}), 1)
    file = tmp_path / "study.json"
    record = json.loads(file.read_text())
    old = {key: value for key, value in record.items() if key != "values"}
    file.write_text(json.dumps(old))
    results = execution.load(tmp_path)
    assert results.study.changed_settings() == {"sp.class": ("S", "W")}
    titles = [table.title for table in render.report(results).details]
    assert "Settings, by this version: the record has the given ones alone" in titles
    Results.create(tmp_path, results.study, 2)
    file.write_text(json.dumps(old | {"values": {"former": 7, "sp.class": "S", "hpl.n": 600}}))
    results = execution.load(tmp_path)
    rows = [row for table in render.report(results).details if table.title == "Settings" for row in table.rows]
    assert results.study.value(HPL_N) == 600 and ("former", "of another version", "7", "") in rows


def test_studies_of_different_sizes_are_not_compared(tmp_path: Path) -> None:
    """The refusal has the command that makes a comparable one."""
    usual = Results.create(tmp_path / "usual", XenMigration(True), 1)
    small = Results.create(tmp_path / "small", XenMigration(True, given={"linpack.n": "200"}), 1)
    with pytest.raises(Refused, match="different sizes") as refused:
        differences(usual, small)
    assert refused.value.next == "wherry study run xen-migration --set linpack.n=200 --quick --out DIR"
    assert differences(usual, usual) == []


def test_a_share_is_no_whole_number() -> None:
    share = Setting("share", "of a processor", 0.2, 0.2, least=0.2, most=1)
    assert share.parse("0.35") == 0.35
    for typed, near in (("0.05", "0.2"), ("64", "1"), ("x", "0.2")):
        with pytest.raises(Refused) as refused:
            share.parse(typed)
        assert "whole" not in str(refused.value) and refused.value.next == f"--set share={near}"
