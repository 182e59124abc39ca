"""Checks of a job request before anything is created.

Invariant: nothing is changed, and files are read with the owner's rights: a path that the owner cannot access counts as
missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wherry.base.bytes_text import to_native, to_text
from wherry.base.errors import Code, Refused
from wherry.cluster.binds import mounts_named, writable_directory
from wherry.job import file_visibility, launcher_sandbox, mpi, uncounted
from wherry.model.accounts import is_account
from wherry.model.job_request import ExecRequest, JobRequest, Program
from wherry.model.owner import Owner
from wherry.model.records import Cluster, ClusterState, ProgramKey
from wherry.node.as_user import as_user

_RANKS_MAX = 4096
_WORD_MAX = 128 << 10
"""Characters of one word or variable: MAX_ARG_STRLEN of execve(2), in bytes."""


@dataclass(frozen=True)
class JobPlan:
    """A validated request: paths of its programs, the MPI that launches them, the directories that are to be bound into
    the cluster's nodes before, what the user is warned of, the key of the program where the run is measured, why its
    ranks are where they are, and why their calls of MPI will not be counted.

    Nodes do not see the program or its directory without `further`; of `mounts`, which the job names, they lack mounts
    that were made after them; `wished` has to be bound so that its directory is writable, or `unwritable` why it is
    not.
    """

    request: JobRequest
    paths: tuple[Path, ...]
    mpi: mpi.Mpi
    further: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    wished: str = ""
    unwritable: str = ""
    warning: str = ""
    program: ProgramKey | None = None
    placed: str = ""
    uncounted: str = ""

    @property
    def programs(self) -> tuple[Program, ...]:
        """What is launched."""
        request = self.request
        counts = [program.ranks for program in request.programs] or [request.ranks]
        lines = zip(self.paths, request.command_lines, counts, strict=True)
        return tuple(Program(argv=(to_text(str(path)), *words[1:]), ranks=count) for path, words, count in lines)


def plan(request: JobRequest, cluster: Cluster, closed: tuple[str, ...] = ()) -> JobPlan:
    """The plan of the job. None of the directories that are bound is `closed`. Refused when the cluster cannot run the
    request."""
    check_cluster(request, cluster)
    if not 1 <= request.ranks <= _RANKS_MAX:
        what = f"{request.ranks} ranks cannot be started"
        raise Refused(
            Code.USAGE, what, f"a job has 1 to {_RANKS_MAX} ranks", f"wherry run {cluster.name} -n 4 -- PROGRAM"
        )
    if request.host_memory and "container" not in cluster.spec.kinds:
        what = f"ranks of cluster {cluster.name} cannot send messages by their host's memory"
        why = "its nodes are virtual machines, and QEMU cannot move all machines that share memory (ivshmem)"
        raise Refused(Code.UNSUPPORTED, what, why, "leave --host-memory out, or use containers")
    if request.plain and request.inside_mpi:
        what, other = f"--plain and {request.inside_mpi[0]} exclude each other", "it needs Wherry inside MPI"
        raise Refused(Code.USAGE, what, other, f"leave --plain or {request.inside_mpi[0]} out")
    _require_words(request)
    found = JobPlan(request, *as_user(request.owner, lambda: _look(request, cluster, closed)))
    why = as_user(request.owner, lambda: uncounted.at_start(request, cluster, found.paths))
    return replace(found, uncounted=why)


def check_cluster(request: JobRequest | ExecRequest, cluster: Cluster) -> None:
    """Refused when the cluster does not run, or would refuse the request's owner, or the machine cannot confine the
    owner's launcher."""
    _require_owner(cluster, request.owner)
    launcher_sandbox.require_possible(request.owner)
    if cluster.state is not ClusterState.RUNNING:
        why = cluster.reason or f"it is {cluster.state}"
        what = f"cluster {cluster.name} is not ready for jobs"
        raise Refused(Code.WRONG_STATE, what, why, "wherry up FILE repairs it")


def _look(
    request: JobRequest, cluster: Cluster, closed: tuple[str, ...]
) -> tuple[tuple[Path, ...], mpi.Mpi, tuple[str, ...], tuple[str, ...], str, str]:
    owner, here = request.owner, Path(request.owner.cwd)
    file_visibility.require_enterable(here, owner)
    paths = {name: value for name, value in request.env.items() if name in ("PATH", "LD_LIBRARY_PATH")}
    env = {name: _from(here, to_native(value)) for name, value in paths.items()}
    contained, further = "container" in cluster.spec.kinds, tuple[str, ...]()
    programs: list[Path] = []
    found: list[mpi.Mpi] = []
    for words in request.command_lines:
        program = mpi.find_program(to_native(words[0]), owner, env)
        if contained:
            program, more = file_visibility.make_visible(program, here, cluster, closed)
            further += more
        programs.append(program)
        found.append(mpi.find(program, owner, env, request.mpi))
    for other, program in zip(found, programs, strict=True):
        if other.launcher != found[0].launcher:
            what = f"{programs[0].name} and {program.name} cannot be one job"
            why = f"they are linked against {found[0]} and {other}"
            raise Refused(Code.USAGE, what, why, "mpicc of one MPI for both")
    further = tuple(dict.fromkeys(further))
    mounts, wished, unwritable = tuple[str, ...](), "", ""
    if contained:
        seen = cluster.model_copy(update={"binds": (*cluster.binds, *further)})
        file_visibility.require_visible(found[0].launcher, "the launcher", seen)
        if not is_account(owner.uid):
            argv = [word for line in request.command_lines for word in line]
            texts = (*map(str, programs), *map(to_native, (owner.cwd, *argv, *request.env.values())))
            mounts = mounts_named(texts, seen, owner, closed)
            wished, unwritable = writable_directory(owner.cwd, seen, owner, closed)
    return tuple(programs), found[0], further, mounts, wished, unwritable


def _from(here: Path, directories: str) -> str:
    """A search path whose relative entries are seen from a directory."""
    return ":".join(str(here / one) for one in directories.split(":")) if directories else directories


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


def _require_words(request: JobRequest) -> None:
    """Refused when the command or the directory cannot be represented in a command line or in the job file."""
    if not all(request.command_lines):
        raise Refused(
            Code.USAGE, "no program is given", "", f"wherry run {request.cluster} -n {request.ranks} -- PROGRAM"
        )
    if request.programs and sum(program.ranks for program in request.programs) != request.ranks:
        raise Refused(Code.USAGE, f"the programs do not have {request.ranks} ranks together", "", "wherry run --help")
    words = [word for line in request.command_lines for word in line] + list(request.launcher_args)
    require_words(words, request.env, request.owner.cwd)


def require_words(words: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
    """Refused when a command line, its variables or its directory cannot be represented."""
    if any("\0" in word for word in words):
        raise Refused(Code.USAGE, "the command cannot be run", "one of its words has a NUL byte", "wherry run --help")
    if any(len(word) > _WORD_MAX for word in (*words, *env.values())):
        why = f"one of its words or variables is longer than {_WORD_MAX >> 10} KiB, which is the kernel's limit"
        raise Refused(Code.USAGE, "the command cannot be run", why, "pass fewer or shorter arguments and variables")
    if any("\0" in name + value for name, value in env.items()):
        raise Refused(Code.USAGE, "the command cannot be run", "one of its variables has a NUL byte", "env")
    if not cwd.startswith("/") or {"\n", "\0"} & set(cwd):
        why = "it is not absolute, or has a line break in its name"
        raise Refused(Code.USAGE, f"jobs cannot be run in {cwd!r}", why, "cd to another directory")
