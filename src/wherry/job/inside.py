"""The environment with which a job's ranks ask the daemon, and the hints that their program gave it.

Pure but for the environment's text. Invariants: the token is derived from the secret of the job's cluster, so it is
stored nowhere, differs for each job, and ends with the cluster; a job keeps the hints of at most `MOST_RANKS` ranks.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from wherry.base.errors import Code, Refused
from wherry.model.host_memory import INSIDE
from wherry.model.host_memory import KEPT as OWN
from wherry.model.records import Cluster, Hints, IterationHint, Job, PhaseHint

PORT = 7311
"""TCP port at the address of a cluster's head, in the cluster's own network."""
SERVICE, TOKEN = "WHERRY_SERVICE", "WHERRY_TOKEN"
"""Variables of the ranks' environment; native/inside/client.c reads them."""
SHARED, KEPT, SECRET = "WHERRY_MPI_SHARED", "WHERRY_MPI_KEPT", "WHERRY_MPI_SECRET"  # noqa: S105 - the names
"""Variables for messages by the host's memory; native/mpi/shared.c reads them."""
MOST_RANKS = 256
_ANEW = 30.0
"""Seconds after which iterations are timed from a later hint, as their length may change."""


def environment(cluster: Cluster, id: str, secret: str, host_memory: bool = False) -> dict[str, str]:
    """The variables by which the ranks of a job find the daemon and prove whose they are. With `host_memory` also those
    by which they send messages by their host's memory."""
    found = {SERVICE: f"{cluster.head_address}:{PORT}", TOKEN: f"{id}.{token(secret, id)}"}
    if host_memory:
        proof = hmac.new(secret.encode(), f"messages of {id}".encode(), hashlib.sha256).hexdigest()
        found |= {SHARED: f"{INSIDE}/{id}", KEPT: f"{OWN}/{id}", SECRET: proof}
    return found


def token(secret: str, id: str) -> str:
    """The token of a job, from the secret of its cluster. No node has this name (`Placements.key`)."""
    return hmac.new(secret.encode(), f"token of {id}".encode(), hashlib.sha256).hexdigest()


def with_phase(hints: Hints, rank: int, name: str, critical: bool) -> Hints:
    """A rank is in a phase now; in none when its name is empty. NO_CAPACITY when too many ranks are in one."""
    others = tuple(phase for phase in hints.phases if phase.rank != rank)
    if not name:
        return hints.model_copy(update={"phases": others})
    _require_few(others)
    phase = PhaseHint(rank=rank, name=name, critical=critical)
    return hints.model_copy(update={"phases": (*others, phase)})


def with_iterations(hints: Hints, rank: int, left: int, ran: float) -> Hints:
    """A rank has so many iterations left after `ran` seconds. The time of one is known from its second hint on.
    NO_CAPACITY when too many ranks give hints."""
    others = tuple(one for one in hints.iterations if one.rank != rank)
    _require_few(others)
    told = next((one for one in hints.iterations if one.rank == rank), None)
    if told is None or left > told.left:  # the first one, or another loop
        told = IterationHint(rank=rank, left=left, timed_left=left, timed_at=ran)
    each, since = told.per_iteration, (told.timed_left, told.timed_at)
    if left < told.timed_left and ran > told.timed_at:
        each = (ran - told.timed_at) / (told.timed_left - left)
        if ran - told.timed_at > _ANEW:
            since = left, ran
    told = IterationHint(
        rank=rank, left=left, timed_left=since[0], timed_at=since[1], per_iteration=each,
        ends=None if each is None else ran + each * left,
    )  # fmt: skip
    return hints.model_copy(update={"iterations": (*others, told)})


def _require_few(others: Sequence[PhaseHint | IterationHint]) -> None:
    if len(others) >= MOST_RANKS:
        what = f"{MOST_RANKS} ranks of this job have given theirs already"
        raise Refused(Code.NO_CAPACITY, what, "that is the limit for one job", "let one rank tell for all")


def remaining(hints: Hints, ran: float) -> float | None:
    """Seconds from second `ran` on until the slowest rank has made its iterations; None while that is not known."""
    ends = [one.ends for one in hints.iterations if one.ends is not None]
    return max(0.0, max(ends) - ran) if ends else None


def amid_critical_phase(jobs: Iterable[Job]) -> str:
    """Why no node of these jobs' cluster is to be moved now: the critical phase of a rank, for a text; empty when none
    is in one."""
    for job in jobs:
        for phase in job.hints.phases if job.hints and job.state.under_way else ():
            if phase.critical:
                who = f"rank {phase.rank}" if phase.rank >= 0 else "its program"
                return f"{who} of job {job.id} is in the critical phase {phase.name!r}"
    return ""
