"""The trail of an operation. Frozen data."""

from __future__ import annotations

from enum import StrEnum

from wherry.model.records import Record


class OperationStepKind(StrEnum):
    BEGIN = "begin"
    PROGRESS = "progress"
    CANCEL = "cancel"
    END = "end"


class OperationStep(Record):
    """A step of an operation: its begin, a line of progress, as of each phase of a move, a request to cancel it, or its
    end with the reason; `by` whom (empty: the daemon itself)."""

    number: int = 0
    time: float
    kind: OperationStepKind
    text: str
    by: str = ""
