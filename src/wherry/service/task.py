"""A running operation, as its body uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wherry.base.errors import Code, Failed
from wherry.model.records import Operation, OperationState
from wherry.service.claims import Claims


@dataclass
class Task:
    """A running operation, as its body uses it. `claim` adds claims; WRONG_STATE when they conflict. `downgrade_claim`
    turns an exclusive claim into a shared one."""

    operation: Operation
    progress: Callable[[str], None]
    claims: Claims
    claim: Callable[[Claims], None]
    downgrade_claim: Callable[[str], None]
    apart: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    asked_to_end: bool = False
    lines: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """True until the operation has ended."""
        return self.operation.state == OperationState.RUNNING

    def cancelled(self) -> bool:
        """True once cancellation was requested."""
        return self.stop.is_set()

    def check(self) -> None:
        """Raises CANCELLED once cancellation was requested."""
        if self.cancelled():
            raise Failed(Code.CANCELLED, f"{self.operation.kind} {self.operation.target} was cancelled")


class Again(Exception):  # noqa: N818 - it is no error of anybody's
    """Raised by the body of an operation that waited: it waits on, and has changed nothing."""


Body = Callable[[Task], dict[str, Any] | None]
"""The work of an operation; its result."""
