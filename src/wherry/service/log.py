"""The daemon's log: `state/log`, rotated, readable by its owner alone.

Invariant: no secret is logged. Request bodies, environments and keys never reach a logger; names and texts of events
and operations do.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import threading

from wherry.base.paths import Instance

_BYTES = 2 * 2**20
_KEPT = 3


def _log_exception(ended: threading.ExceptHookArgs) -> None:
    """Logs the exception that ended a thread: its standard error is nobody's."""
    if ended.exc_value is not None:
        name = ended.thread.name if ended.thread else "?"
        logging.getLogger("wherry.threads").error("the thread %s ended", name, exc_info=ended.exc_value)


def log_to_file(instance: Instance) -> None:
    """Directs all loggers to the instance's log."""
    instance.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = instance.state / "log"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_BYTES, backupCount=_KEPT)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    threading.excepthook = _log_exception
    for noisy in ("alembic", "uvicorn", "asyncio", "pyroute2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
