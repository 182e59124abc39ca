"""The commands on reports of studies: files in the daemon's directory, each with a record beside it.

Invariants: a report is visible to its owner and to all who see the owner's things; a report that root published, to
everybody. A report exists only with its record. Names are names (`wherry.model.spec.base`), so they stay in the
directory.
"""

from __future__ import annotations

import threading
from pathlib import Path

from pydantic import ValidationError

from wherry.base.atomic_write import write_atomically
from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.base.text import printable
from wherry.cluster.lookup import not_found
from wherry.model.reports import LONGEST_REPORT, StudyReport
from wherry.model.spec.base import name_of
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials

_MAX_REPORTS, _MAX_OF_OWNER = 1000, 100
"""Reports in all, and of one owner."""
_CHANGING = threading.Lock()


class ReportCommands:
    """The commands of one peer."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer = context, peer
        self._directory = context.instance.state / "reports"

    def all(self) -> list[StudyReport]:
        """All reports that the peer may see, newest first."""
        return [report for report in self._kept() if self._sees(report)]

    def read(self, name: str) -> tuple[StudyReport, str]:
        """A report and its HTML, which is anybody's. NOT_FOUND."""
        report = self._found(name)
        try:
            return report, self._path(report.name, "html").read_text(errors="replace")
        except FileNotFoundError:  # it is being removed
            raise self._none(name) from None

    def put(self, name: str, title: str, html: str) -> StudyReport:
        """Keeps a report, in place of one's own of that name. NAME_TAKEN, QUOTA_EXCEEDED, USAGE."""
        try:
            name_of(name)
        except ValueError as error:
            raise Refused(Code.USAGE, "this is not the name of a report", str(error), "choose another name") from None
        content = html.encode()
        if len(content) > LONGEST_REPORT:
            why = f"it has {len(content)} bytes, and may have {LONGEST_REPORT}"
            raise Refused(Code.USAGE, "the report is too large", why, "publish a smaller one")
        with _CHANGING:
            kept = self._kept()
            before = next((report for report in kept if report.name == name), None)
            if before and before.owner != self._peer.uid:
                why = "somebody else published one of this name"
                raise Refused(Code.NAME_TAKEN, f"report {name} is not yours", why, "choose another name")
            own = sum(report.owner == self._peer.uid for report in kept)
            if not before and (len(kept) >= _MAX_REPORTS or own >= _MAX_OF_OWNER):
                why = f"you have {own}, all have {len(kept)}"
                raise Refused(Code.QUOTA_EXCEEDED, "no more reports are kept", why, "wherry study withdraw NAME")
            report = StudyReport(
                name=name, title=printable(title)[:200], owner=self._peer.uid, by=self._peer.who, created=now(),
                bytes=len(content),
            )  # fmt: skip
            self._directory.mkdir(mode=0o700, exist_ok=True)
            write_atomically(self._path(name, "html"), content, 0o600)
            write_atomically(self._path(name, "json"), report.model_dump_json().encode(), 0o600)
        self._note("report.publish", name, f"report {name} was published by {report.by}")
        return report

    def remove(self, name: str) -> StudyReport:
        """Removes a report. NOT_FOUND, PERMISSION."""
        with _CHANGING:
            report = self._found(name)
            self._peer.require(report.owner, f"report {name}")
            for kind in ("json", "html"):
                self._path(report.name, kind).unlink(missing_ok=True)
        self._note("report.remove", name, f"report {name} was removed by {self._peer.who}")
        return report

    def _kept(self) -> list[StudyReport]:
        found = [_record(path) for path in self._directory.glob("*.json")]
        return sorted((one for one in found if one), key=lambda report: report.created, reverse=True)

    def _sees(self, report: StudyReport) -> bool:
        return report.owner == 0 or self._peer.sees(report.owner)

    def _found(self, name: str) -> StudyReport:
        found = next((report for report in self.all() if report.name == name), None)
        if found is None:
            raise self._none(name)
        return found

    def _none(self, name: str) -> Refused:
        return not_found("report", name, [report.name for report in self.all()])

    def _path(self, name: str, kind: str) -> Path:
        return self._directory / f"{name}.{kind}"

    def _note(self, kind: str, name: str, text: str) -> None:
        self._context.store.add_event(kind, name, text, self._peer.uid)


def _record(path: Path) -> StudyReport | None:
    try:
        return StudyReport.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):  # removed meanwhile, or of another version
        return None
