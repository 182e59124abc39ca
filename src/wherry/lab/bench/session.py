"""Where a benchmark runs: a temporary instance and a temporary working directory for its jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from wherry.base.errors import Code, Refused
from wherry.base.paths import as_root, instance
from wherry.client import daemon_process
from wherry.lab.sole_use import sole_use


@contextmanager
def temporary_instance(name: str, *, keep: bool = False) -> Iterator[None]:
    """Runs the block in an instance that is removed completely at the end, unless `keep`. The instance is `name`, or
    WHERRY_INSTANCE if set; that one must not exist yet, because everything in it is removed, and no other measurement
    may run in it.
    """
    os.environ.setdefault("WHERRY_INSTANCE", name)
    selected = instance()
    if selected.name != name and (selected.run.exists() or selected.state.exists()):
        what = f"the instance {selected.name} is in use"
        why = f"at its end {name} would remove all that is in it"
        raise Refused(Code.WRONG_STATE, what, why, f"unset WHERRY_INSTANCE, or: {as_root(['down', '--all'])}")
    with sole_use():
        try:
            yield
        finally:
            if not keep:
                daemon_process.stop(instance())
                daemon_process.sweep()


@contextmanager
def working_directory() -> Iterator[Path]:
    """A temporary directory, not below /tmp, because each node has a /tmp of its own."""
    with TemporaryDirectory(prefix="wherry-bench-", dir=Path.home()) as path:
        yield Path(path)
