"""The caller, for records that are written during a request or operation: a name in its context, empty for the daemon
itself. It gives no rights."""

from __future__ import annotations

from contextvars import ContextVar

acting: ContextVar[str] = ContextVar("acting", default="")
