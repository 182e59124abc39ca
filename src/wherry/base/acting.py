"""Who asks, for what is written down meanwhile: a name in the context of the request or operation, empty for the daemon
itself. It gives no rights."""

from __future__ import annotations

from contextvars import ContextVar

acting: ContextVar[str] = ContextVar("acting", default="")
