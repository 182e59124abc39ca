"""The cgroup of the launcher of an account's job, with its programs on this machine, outside any node.

An account may choose the launcher's words and variables, and so the programs that it runs here. Invariant: it has a
limit, and nothing of it is left when the job has ended.
"""

from __future__ import annotations

from pathlib import Path

from wherry.base.paths import Instance
from wherry.fabric.cgroup import Cgroup
from wherry.model.accounts import is_account
from wherry.model.owner import Owner

_CPUS, _MEMORY = 1.0, 1 << 30


def joined(directory: Path, owner: Owner) -> list[str]:
    """Makes the group of the job with this directory; the words by which `wherry-ns` joins it. None for users of the
    machine. Failed when the machine cannot limit it."""
    if not is_account(owner.uid):
        return []
    group = _of(directory)
    group.create()
    group.limit(_CPUS, _MEMORY)
    return [word for file in group.procs_files() for word in ("--cgroup", file)]


def end(directory: Path, owner: Owner) -> None:
    """Ends the processes that are left in it, and removes it. Failed when something stays."""
    if is_account(owner.uid):
        _of(directory).remove()


def _of(directory: Path) -> Cgroup:
    """By the instance and the job, of which it is the directory: STATE/INSTANCE/jobs/JOB."""
    return Cgroup(f"{Instance(directory.parent.parent.name).prefix}/.launcher-{directory.name}")
