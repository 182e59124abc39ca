"""Removal of the objects that a failed step made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("wherry.node")


@contextmanager
def undone_on_error(undo: Callable[[], object], what: str) -> Iterator[None]:
    """Calls `undo` when the block raises. The block's error is the cause, so it is raised; an error of `undo` is logged
    with `what`."""
    try:
        yield
    except BaseException:
        try:
            undo()
        except Exception:
            log.exception("%s could not be removed after its start had failed", what)
        raise
