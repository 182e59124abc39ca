"""Report of the study `topology`: each cell's two times and decision, how often that was right, and the
effect of collectives by sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import median
from wherry.lab.study import analysis
from wherry.lab.study.experiment import Page
from wherry.lab.study.papers.topology_design import (
    BRIEF,
    BY_SITES,
    COLLECTIVE,
    ONE,
    PACKED,
    SPREAD,
    TIE,
    TopologyDesign,
    cell,
)
from wherry.lab.study.results import Results

GOAL = 0.95
"""Share of decisions that are to be right."""
RIGHT, WRONG, TIED, OPEN = "right", "wrong", "tie", "not measured"


@dataclass(frozen=True)
class Judged:
    """The decisions of a cell beside the oracle: its ratio of times (None where they are not measured), which placement
    is the `best`, and how many decisions are right, wrong, or tied. A wrong one loses `lost`, as a part of the better
    time."""

    spread_over_packed: float | None
    best: str
    right: int = 0
    wrong: int = 0
    tied: int = 0
    lost: float = 0.0

    @property
    def text(self) -> str:
        if self.best == OPEN or not self.right + self.wrong + self.tied:
            return OPEN
        if self.best == TIED:
            return TIED
        if not self.wrong:
            return RIGHT
        of = f" {self.wrong} of {self.right + self.wrong}" if self.right else ""
        return f"{WRONG}{of}, {self.lost:.0%} lost"


def judge(packed: Sequence[float], spread: Sequence[float], packs: Sequence[float], tie: float) -> Judged:
    """Holds decisions against the oracle. A tie is where the times differ by no more than the part `tie` of the shorter
    one, or where the intervals of at least two runs each overlap."""
    if not packed or not spread:
        return Judged(None, OPEN)
    one, other = median(packed), median(spread)
    ratio = other.value / one.value
    overlap = min(len(packed), len(spread)) > 1 and one.low <= other.high and other.low <= one.high
    if overlap or max(ratio, 1 / ratio) - 1 <= tie:
        return Judged(ratio, TIED, tied=len(packs))
    best = PACKED if ratio > 1 else SPREAD
    right = sum((one > 0.5) == (best == PACKED) for one in packs)
    return Judged(ratio, best, right, len(packs) - right, 0, max(ratio, 1 / ratio) - 1)


def cells(study: TopologyDesign, results: Results) -> Iterator[tuple[str, str, Judged]]:
    """Program, link, and result."""
    programs, links, _ = (factor.measured() for factor in study.factors())
    for program in programs:
        for link in links:
            packed, spread = (
                results.values(study.runs_of(program, link, where), "seconds") for where in (PACKED, SPREAD)
            )
            packs = results.values(cell(program, link, BRIEF), "packs")
            yield program, link, judge(packed, spread, packs, study.value(TIE))


def page(study: TopologyDesign, results: Results) -> Page:
    """Tables, figures and remarks."""
    contents = Page(tables=[_share(study, results), _decisions(study, results), _collectives(study, results)])
    for link in study.factors()[1].measured():
        groups = {
            program.upper(): data
            for program in study.factors()[0].measured()
            if (data := _times(study, results, program, link, (PACKED, SPREAD)))
        }
        if groups:
            caption = f"Time packed at one site and spread over two, {study.factors()[1].label(link)}."
            contents.figures.append((caption, figures.bars(groups, "s")))
    contents.remarks += [
        f"A tie: the two times differ by at most {study.value(TIE):.0%}, or the intervals of two or more runs of each "
        "overlap. Ties are not among the decisions that are right or wrong. The loss by a wrong decision is a part "
        "of the better time.",
        "`predicted` is the time of a step that the rule expects in the placement that it considered best, over that "
        "of a step as it is spread; 1 where it found none better. It acts from a fifth on, so a job that would gain "
        "less stays spread.",
        "In the directory of each brief run the file `decision` has the rule's own words.",
    ]
    return contents


def _times(
    study: TopologyDesign, results: Results, program: str, link: str, wheres: Sequence[str]
) -> dict[str, list[float]]:
    found = {where: results.values(study.runs_of(program, link, where), "seconds") for where in wheres}
    return {where: data for where, data in found.items() if data}


def _share(study: TopologyDesign, results: Results) -> Table:
    judged = [one for _, _, one in cells(study, results)]
    right, wrong, tied = (sum(getattr(one, name) for one in judged) for name in ("right", "wrong", "tied"))
    count = right + wrong
    share = f"{right} of {count} ({right / count:.0%})" if count else "not measured"
    verdict = ("reached" if right >= GOAL * count else "missed") if count else ""
    lost = [one.lost for one in judged if one.wrong]
    open_cells = sum(one.text == OPEN for one in judged)
    rows = [
        ("decisions that are right, without ties", f"at least {GOAL:.0%}", share, verdict),
        ("decisions in cells that are ties", "", str(tied), ""),
        ("cells", "", f"{len(judged)}, {open_cells} of them not measured", ""),
        ("the most that a wrong one loses", "", f"{max(lost):.0%}" if lost else "-", ""),
    ]
    return Table("How often the decision is right", ("quantity", "goal", "here", ""), rows, main=True)


def _decisions(study: TopologyDesign, results: Results) -> Table:
    programs, links, _ = study.factors()
    rows = []
    for program, link, judged in cells(study, results):
        brief = cell(program, link, BRIEF)
        packs = results.values(brief, "packs")
        if judged.spread_over_packed is None and not packs:
            continue
        times = [results.values(study.runs_of(program, link, where), "seconds") for where in (PACKED, SPREAD)]
        seen = [results.values(brief, metric) for metric in ("computing", "link", "predicted")]
        rows.append(
            (
                programs.label(program),
                links.label(link),
                *(median(data).text() if data else "not measured" for data in times),
                f"{judged.spread_over_packed:.2f}" if judged.spread_over_packed else "-",
                judged.best,
                f"packs {sum(one > 0.5 for one in packs)} of {len(packs)}" if packs else "not measured",
                judged.text,
                *(f"{median(data).value:.2f}" if data else "-" for data in seen),
            )
        )
    head = ("program", "link", "packed, s", "spread, s", "spread : packed", "faster", "Wherry", "")
    return Table("Decisions beside the oracle", (*head, "computing", "link's share", "predicted"), rows, main=True)


def _collectives(study: TopologyDesign, results: Results) -> Table:
    programs, links, _ = study.factors()
    rows = []
    for program in programs.measured():
        for link in links.measured() if program in COLLECTIVE else ():
            own, ours, one = (
                results.values(study.runs_of(program, link, where), "seconds") for where in (SPREAD, BY_SITES, ONE)
            )
            if not (own or ours or one):
                continue
            gain, beside = analysis.ratio_of_runs(ours, own), analysis.ratio_or_none(ours, one)
            rows.append(
                (
                    programs.label(program),
                    links.label(link),
                    *(median(data).text() if data else "not measured" for data in (own, ours, one)),
                    gain.text() if gain else "",
                    analysis.significance_text(ours, own) if gain else "",
                    beside.text() if beside else "",
                )
            )
    head = ("program", "link", "two sites, s", "by sites, s", "one site, s", "by sites : own", "test")
    title = "Collectives by sites (--site-collectives), beside the MPI's own and one site with as many fast hosts"
    return Table(title, (*head, "by sites : one site"), rows, main=True)
