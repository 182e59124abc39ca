"""`wherry job check`, and the output of `wherry move --dry-run` for a node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from wherry.base.text import printable
from wherry.base.units import format_size
from wherry.cli.names import JobId
from wherry.cli.output import Output, emit
from wherry.client import existing

if TYPE_CHECKING:
    from wherry.model.move_check import Hindrance, JobCheck, NodeCheck

_NOT_ALL = 4
"""Exit code when a node cannot be moved: that of a refusal."""


def check(job: JobId, /, *, output: Output = "text") -> int:
    """Show what would prevent or prolong a move of each node of a job, and to which hosts it can go.

    Nothing is changed. The exit code is 4 when a node cannot be moved to any host.

    Parameters
    ----------
    job
        The job.
    """
    with existing(f"job {job!r}") as client:
        found = client.check_job(job)
    emit(output, "job-check", found, lambda: print("\n".join(_lines(found))))
    return 0 if all(map(_movable, found.nodes)) else _NOT_ALL


def hindrance(found: Hindrance) -> str:
    """A hindrance in words."""
    if found.grows:
        return printable(f"a move takes {format_size(found.grows)} more memory: {found.text}")
    kind = "prevents" if found.prevents else "prolongs" if found.bytes else "delays"
    size = f": {format_size(found.bytes)}" if found.bytes else ""
    return printable(f"{kind} a move: {found.text}{size}")


def _lines(found: JobCheck) -> Iterator[str]:
    for node in found.nodes:
        hosts = ", ".join(host.host for host in node.hosts if not host.obstacle)
        yield f"{node.node} on {node.host}: " + (f"can move to {hosts}" if _movable(node) else "cannot be moved")
        yield from (f"  {hindrance(one)}" for one in node.hindrances)
        yield from (printable(f"  not to {host.host}: {host.obstacle}") for host in node.hosts if host.obstacle)


def _movable(node: NodeCheck) -> bool:
    prevented = any(one.prevents for one in node.hindrances)
    return not prevented and any(not host.obstacle for host in node.hosts)
