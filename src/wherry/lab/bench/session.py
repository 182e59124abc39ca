"""Where a benchmark runs: an instance of its own that is gone afterwards, and a directory for its jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from wherry.base.errors import Code, Refused
from wherry.base.paths import as_root, instance
from wherry.client import daemon_process


@contextmanager
def temporary_instance(name: str, *, keep: bool = False) -> Iterator[None]:
    """Uses an instance of which nothing is left at the end, unless it is to be kept.

    It is called `name` unless WHERRY_INSTANCE names another. One that the user has named must not exist yet: everything
    in it would be removed.
    """
    os.environ.setdefault("WHERRY_INSTANCE", name)
    selected = instance()
    if selected.name != name and (selected.run.exists() or selected.state.exists()):
        what = f"the instance {selected.name} is in use"
        why = f"at its end {name} would remove all that is in it"
        raise Refused(Code.WRONG_STATE, what, why, f"unset WHERRY_INSTANCE, or: {as_root(['down', '--all'])}")
    try:
        yield
    finally:
        if not keep:
            daemon_process.stop(instance())
            daemon_process.sweep()


@contextmanager
def working_directory() -> Iterator[Path]:
    """A directory that is gone afterwards. Not below /tmp, which is each node's own."""
    with TemporaryDirectory(prefix="wherry-bench-", dir=Path.home()) as path:
        yield Path(path)
