"""Routes of reports of studies."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field

from wherry.model.reports import LONGEST_REPORT, StudyReport
from wherry.service.report_commands import ReportCommands
from wherry.service.rest.dependencies import Body, ContextDep, PeerDep

router = APIRouter(tags=["reports"])


class ReportBody(Body):
    """A report: its title, and its page as HTML, which is only ever shown in a sandbox."""

    title: Annotated[str, Field(max_length=1000)]
    html: Annotated[str, Field(max_length=LONGEST_REPORT)]


def _reports(context: ContextDep, peer: PeerDep) -> ReportCommands:
    return ReportCommands(context, peer)


ReportsDep = Annotated[ReportCommands, Depends(_reports)]


@router.get("/reports")
def list_reports(reports: ReportsDep) -> list[StudyReport]:
    """One's own and the machine's; newest first."""
    return reports.all()


@router.get("/reports/{name}")
def show_report(name: str, reports: ReportsDep) -> dict[str, Any]:
    """`report`, and its `html`."""
    report, html = reports.read(name)
    return {"report": report.model_dump(mode="json"), "html": html}


@router.put("/reports/{name}")
def put_report(name: str, body: ReportBody, reports: ReportsDep) -> StudyReport:
    """Keeps a report, in place of one's own of that name."""
    return reports.put(name, body.title, body.html)


@router.delete("/reports/{name}")
def remove_report(name: str, reports: ReportsDep) -> StudyReport:
    """Removes a report; returns its record."""
    return reports.remove(name)
