"""One sitting of a benchmark: a directory for what it writes, and an instance of its own that is gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wherry.base.paths import instance
from wherry.client import process


@contextmanager
def sitting(name: str, out: Path, *, keep: bool) -> Iterator[Path]:
    """Makes `out` the working directory; at the end nothing is left of the instance, unless it is to be kept.

    The instance is called `name` where the user has named none.
    """
    os.environ.setdefault("WHERRY_INSTANCE", name)
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(out)
    try:
        yield out
    finally:
        if not keep:
            process.stop(instance())
            process.sweep()
