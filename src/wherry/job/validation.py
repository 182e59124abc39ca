"""Checks of a job request before anything is created.

Invariant: nothing is changed, and files are read with the owner's rights: a path that the owner cannot access counts as
missing.
"""

from __future__ import annotations

from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.job import file_visibility, mpi
from wherry.model.job_request import JobRequest
from wherry.model.owner import Owner
from wherry.model.records import Cluster, ClusterState
from wherry.node.as_user import as_user

_RANKS_MAX = 4096
_WORD_MAX = 128 << 10
"""Characters of one word or variable: MAX_ARG_STRLEN of execve(2), in bytes."""


def program_of(
    order: JobRequest, cluster: Cluster, closed: tuple[str, ...] = ()
) -> tuple[Path, mpi.Mpi, tuple[str, ...]]:
    """The program, the MPI to launch it with, and the directories to bind into the nodes first, none of which is
    `closed`. Refused when the cluster cannot run the request."""
    check_cluster(order, cluster)
    if not 1 <= order.ranks <= _RANKS_MAX:
        what = f"{order.ranks} ranks cannot be started"
        raise Refused(
            Code.USAGE, what, f"a job has 1 to {_RANKS_MAX} ranks", f"wherry run {cluster.name} -n 4 -- PROGRAM"
        )
    _require_words(order)
    return as_user(order.owner, lambda: _look(order, cluster, closed))


def check_cluster(order: JobRequest, cluster: Cluster) -> None:
    """Refused when the cluster does not run, or does not know the order's owner. Reads the given rows alone."""
    _require_owner(cluster, order.owner)
    if cluster.state is not ClusterState.RUNNING:
        why = cluster.reason or f"it is {cluster.state}"
        what = f"cluster {cluster.name} is not ready for jobs"
        raise Refused(Code.WRONG_STATE, what, why, "wherry up FILE repairs it")


def _look(order: JobRequest, cluster: Cluster, closed: tuple[str, ...]) -> tuple[Path, mpi.Mpi, tuple[str, ...]]:
    owner, here = order.owner, Path(order.owner.cwd)
    file_visibility.require_enterable(here, owner)
    program = mpi.find_program(order.argv[0], owner, order.env)
    contained, further = "container" in cluster.spec.kinds, tuple[str, ...]()
    if contained:
        program, further = file_visibility.make_visible(program, here, cluster, closed)
    found = mpi.find(program, owner, order.env, order.mpi)
    if contained:
        seen = cluster.model_copy(update={"binds": (*cluster.binds, *further)})
        file_visibility.require_visible(found.launcher, "the launcher", seen)
    return program, found, further


def _require_owner(cluster: Cluster, owner: Owner) -> None:
    """Refused for users and groups other than the cluster's, even root: the nodes' agents would refuse them, too."""
    name = cluster.name
    if owner.uid != cluster.owner_uid:
        why = f"it belongs to uid {cluster.owner_uid}, you are uid {owner.uid}; its nodes run programs of its user only"
        raise Refused(Code.PERMISSION, f"cluster {name} is not yours", why, "wherry up FILE, with another name in it")
    foreign = {owner.gid, *owner.groups} - {cluster.owner_gid, *cluster.owner_groups}
    if foreign and owner.uid != 0:
        what = f"cluster {name} does not know your groups"
        why = f"you were not in gid {', '.join(map(str, sorted(foreign)))} when it was created"
        raise Refused(Code.PERMISSION, what, why, f"wherry down {name}, then wherry up FILE")


def _require_words(order: JobRequest) -> None:
    """Refused when the command or the directory cannot be represented in a command line or in the job file."""
    if not order.argv:
        raise Refused(Code.USAGE, "no program is given", "", f"wherry run {order.cluster} -n {order.ranks} -- PROGRAM")
    if any("\0" in word for word in order.argv):
        raise Refused(Code.USAGE, "the command cannot be run", "one of its words has a NUL byte", "wherry run --help")
    if any(len(word) > _WORD_MAX for word in (*order.argv, *order.env.values())):
        why = f"one of its words or variables is longer than {_WORD_MAX >> 10} KiB, which is the kernel's limit"
        raise Refused(Code.USAGE, "the command cannot be run", why, "pass fewer or shorter arguments and variables")
    if any("\0" in name + value for name, value in order.env.items()):
        raise Refused(Code.USAGE, "the command cannot be run", "one of its variables has a NUL byte", "env")
    cwd = order.owner.cwd
    if not cwd.startswith("/") or {"\n", "\0"} & set(cwd):
        why = "it is not absolute, or has a line break in its name"
        raise Refused(Code.USAGE, f"jobs cannot be run in {cwd!r}", why, "cd to another directory")
