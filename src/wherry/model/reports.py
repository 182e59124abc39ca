"""Reports of studies that the daemon keeps, for its page to show. Frozen data; nothing here does I/O."""

from __future__ import annotations

from wherry.model.records import Record

LONGEST_REPORT = 3 * 2**20
"""Bytes of a report's HTML, at the most."""


class StudyReport(Record):
    """A report without its text: its publisher (`by`), the uid of its `owner`, and its size in `bytes`."""

    name: str
    title: str
    owner: int
    by: str
    created: float
    bytes: int
