"""One sitting of a benchmark: a directory for what it writes, and an instance of its own that is gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from wherry.base.errors import Code, Refused
from wherry.base.paths import as_root, instance
from wherry.client import Client, process


@contextmanager
def sitting(name: str, out: Path, *, keep: bool) -> Iterator[Path]:
    """Makes `out` the working directory; at the end nothing is left of the instance, unless it is to be kept.

    The instance is called `name` where the user has named none. One that the user has named must not be there yet, as
    what it had would be gone with it.
    """
    os.environ.setdefault("WHERRY_INSTANCE", name)
    chosen = instance()
    if chosen.name != name and (chosen.run.exists() or chosen.state.exists()):
        what = f"the instance {chosen.name} is in use"
        why = f"at its end {name} would remove all that is in it"
        raise Refused(Code.WRONG_STATE, what, why, f"unset WHERRY_INSTANCE, or: {as_root(['down', '--all'])}")
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(out)
    try:
        yield out
    finally:
        if not keep:
            process.stop(instance())
            process.sweep()


@contextmanager
def short_sitting(name: str) -> Iterator[Client]:
    """A client in a sitting whose directory is gone afterwards, too."""
    with TemporaryDirectory(prefix=f"{name}-", dir=Path.home()) as here:  # not in /tmp, which is each node's own
        with sitting(name, Path(here), keep=False), Client() as client:
            yield client
        os.chdir("/")
