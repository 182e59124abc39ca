"""Copies a job's files to nodes that do not see this machine's files: virtual machines.

A container sees its user's files at their paths. A virtual machine has its image, with a list of the files in it; other
files of a job are copied to the same paths in the machine's memory, so that they move with it (or to its disk, if it
has one, where the system's own files below /usr and the like are never replaced):

    the program with its libraries, or the script with its interpreter
    files and directory trees under `needs` in the cluster's file
    the working directory, empty

Files in the user's directories are left out where the cluster serves them (`Cluster.served`). Files that ranks write
elsewhere stay in their node. Invariant: files are read and written with the owner's rights.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NoReturn

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.units import format_size
from wherry.cluster.binds import is_bound
from wherry.job.agent_client import AgentEndpoint, AgentError, Readable
from wherry.job.mpi import Family, Mpi
from wherry.job.rank_map import RankMap, nodes_of
from wherry.model.owner import Owner
from wherry.model.records import Cluster, Node
from wherry.model.spec.cluster import names_disk
from wherry.node.as_user import as_user
from wherry.node.file_closure import FileSet, Tally, digest, link_digest
from wherry.node.vm.image.root import FILES

_PARALLEL = 8
_SCRATCH = "/var/tmp"
"""Directory of the archives of jobs' files, which may be too large for memory."""
_SECONDS = 60.0
"""Timeout of a request to a node, in addition to the time for its data at _MIN_RATE."""
_MIN_RATE = 1 << 20
"""Bytes per second that an emulated machine receives even on a loaded host."""
_SHARE = 2
"""A job's files may use at most memory / _SHARE of a node, as they are stored in its memory."""
_ENTRIES = 200_000
"""How many files and links are looked at for one job: the daemon keeps a kilobyte for each."""
_POLL_INTERVAL = 0.1
"""Seconds between two looks whether the run was cancelled while files are read."""
_DAEMONS = {Family.OPENMPI: ("orted", "prted"), Family.MPICH: ("hydra_pmi_proxy",)}
_ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
_TOP = frozenset(("/bin", "/lib", "/lib64", "/sbin"))
"""Links or directories in the root, which every system on a disk has of its own."""
_SUMS = "xargs -0 sha256sum 2>/dev/null; true"
_SUM_SECONDS = 300.0
"""Timeout for the checksums of all files of a job, in an emulated machine."""


def targets(map_: RankMap) -> list[Node]:
    """The nodes of a job that have ranks and do not see this machine's files."""
    return [node for node in nodes_of(map_) if node.kind == "vm"]


class _Ended(Exception):  # noqa: N818 - no error: another one is raised for it
    """The reading of files ends, as was asked for."""


class _Cancellable(Tally):
    """Ends the reading of files at its next look, once another thread called `end`."""

    def __init__(self) -> None:
        self._end = threading.Event()

    def end(self) -> None:
        self._end.set()

    def entry(self, name: str) -> None:
        if self._end.is_set():
            raise _Ended


class _Bounded(_Cancellable):
    """Also refuses a job whose files cannot be meant: the whole machine, for instance."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster, self._most = cluster, _holds_most(cluster)
        self.path = ""  # the source that is read: a program, or a path of `needs`
        self._entries = self._size = 0

    def entry(self, name: str) -> None:
        super().entry(name)
        self._entries += 1
        if self._entries > _ENTRIES:
            self._refuse(f"the job has more than {_ENTRIES} files and links with it")

    def file(self, name: str, size: int) -> None:
        super().entry(name)
        if not is_bound(name, self._cluster.served):
            self._size += size
        if self._most is not None and self._size > self._most:
            why = f"with it the job's files are {format_size(self._size)} or more; a node has {format_size(self._most)}"
            self._refuse(f"{why} of memory, half of it for files")

    def _refuse(self, why: str) -> NoReturn:
        what = f"{self.path} cannot be copied to the nodes of {self._cluster.name}"
        remedy = "give the nodes more memory"
        if self.path in self._cluster.spec.needs:
            remedy = f"du -xhd1 {self.path}, name only files that the job reads under needs"
        raise Refused(Code.NO_CAPACITY, what, why, f"{remedy} in the cluster's file, then wherry up")


def gather(
    cluster: Cluster,
    programs: Sequence[Path],
    owner: Owner,
    env: Mapping[str, str],
    ours: Iterable[Path],
    check: Callable[[], None] = lambda: None,
) -> FileSet:
    """The files that the job needs; `ours` are Wherry's own. Refused when one does not exist, and when they are more
    than any node holds. `check` is called several times a second; an exception that it raises aborts."""
    tally = _Bounded(cluster)
    files = FileSet(env.get("LD_LIBRARY_PATH", ""), tally)

    def theirs() -> None:
        for program in programs:
            tally.path = str(program)
            files.add_program(program)
        files.add(owner.cwd)
        for path in cluster.spec.needs:
            tally.path = path
            files.add_tree(path)

    try:
        _attended(owner, theirs, tally, check)
    except OSError as error:
        name = error.filename or tally.path
        what = f"{name} cannot be copied to the nodes of {cluster.name}"
        raise Refused(Code.NOT_FOUND, what, error.strerror or str(error), f"ls -l {name}") from None
    if files.missing:
        library, wanted_by = next(iter(files.missing.items()))
        why = "it is neither in RPATH or LD_LIBRARY_PATH nor in the linker's cache"
        remedy = "export LD_LIBRARY_PATH=/path/to/its/lib, or install it"
        raise Refused(Code.NOT_FOUND, f"{wanted_by} needs {library}, which is not there", why, remedy)
    for path in ours:
        tally.path = str(path)
        files.add_program(path)
    return files.without(lambda name: is_bound(name, cluster.served))


def _holds_most(cluster: Cluster) -> int | None:
    """Bytes that no job's files exceed, with the files that the nodes' image has, which are not copied and take up at
    most the other half of a node's memory. None when a node has a disk for them."""
    firsts = itertools.accumulate((group.count for group in cluster.spec.groups[:-1]), initial=0)
    machines = [one for one in map(cluster.spec.flavor, firsts) if one.kind == "vm"]
    if any(names_disk(one.image) for one in machines):
        return None
    return max((one.memory for one in machines), default=None)


def _attended(owner: Owner, act: Callable[[], None], tally: _Cancellable, check: Callable[[], None]) -> None:
    """`act()` with the owner's rights, in a thread beside this one, which calls `check`: that asks the database, which
    the owner may not open. An exception of `check` is raised when `act` has ended, by its next look at `tally`."""
    done = threading.Event()
    raised: list[BaseException] = []

    def watched() -> None:
        try:
            as_user(owner, act)
        except BaseException as error:  # re-raised in the caller's thread
            raised.append(error)
        finally:
            done.set()

    reader = threading.Thread(target=watched, name="job-files")
    reader.start()
    try:
        while not done.wait(_POLL_INTERVAL):
            check()
    except BaseException:
        tally.end()
        raise
    finally:
        reader.join()
    if raised:
        raise raised[0]


def copy(
    cluster: Cluster,
    nodes: Iterable[tuple[Node, AgentEndpoint]],
    files: FileSet,
    owner: Owner,
    mpi: Mpi,
    check: Callable[[], None],
) -> None:
    """Copies missing files to every node. Refused when a node lacks the memory or the MPI; otherwise Failed. `check` is
    called several times a second while a node is waited for; an exception that it raises aborts."""
    packed: dict[str, IO[bytes]] = {}
    try:
        wanted = []
        for node, endpoint in nodes:
            check()
            disk = names_disk(cluster.spec.flavor(node.index).image)
            known = (
                _on_disk(node, endpoint, files, owner, mpi, check) if disk else _in_image(node, endpoint, owner, check)
            )
            _require_mpi(cluster, known, mpi)
            if disk:
                known = _with_system_files(files, known)
            else:
                _require_room(node, sum(about.st_size for name, about in files.files.items() if name not in known))
            text = json.dumps(known, sort_keys=True)
            if text not in packed:
                packed[text] = _pack(files, owner, known, check)
            wanted.append((node, endpoint, packed[text]))
        with ThreadPoolExecutor(_PARALLEL) as pool:
            list(pool.map(lambda target: _send(target[0], target[1], target[2], owner, check), wanted))
    finally:
        for archive in packed.values():
            archive.close()


def send_program(program: Path, node: Node, endpoint: AgentEndpoint, owner: Owner, check: Callable[[], None]) -> None:
    """Copies one program of Wherry, with the libraries that it needs, to a node."""
    files = FileSet("")
    files.add_program(program)
    with _pack(files, owner, {}, check) as archive:
        _send(node, endpoint, archive, owner, check)


def _pack(
    files: FileSet, owner: Owner, known: Mapping[str, str], check: Callable[[], None] = lambda: None
) -> IO[bytes]:
    """A tar archive of the files that are not `known`, in an unlinked temporary file."""
    tally = _Cancellable()
    archive = tempfile.TemporaryFile(dir=_SCRATCH)

    def write() -> None:
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
            files.write(tar, (owner.uid, owner.gid), known, tally)
        archive.flush()  # it is read through another descriptor

    try:
        _attended(owner, write, tally, check)
    except OSError as error:
        with contextlib.suppress(OSError):  # buffered bytes do not fit either
            archive.close()
        what = f"{error.filename or 'a file of the job'} cannot be copied to the nodes"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = f"df -h {_SCRATCH}, then repeat the command" if full else "repeat the command"
        raise Failed(Code.JOB_FAILED, what, error.strerror or str(error), remedy) from None
    except BaseException:
        archive.close()
        raise
    return archive


def _send(node: Node, endpoint: AgentEndpoint, archive: IO[bytes], owner: Owner, check: Callable[[], None]) -> None:
    size = os.fstat(archive.fileno()).st_size
    view = os.fdopen(os.open(f"/proc/self/fd/{archive.fileno()}", os.O_RDONLY | os.O_CLOEXEC), "rb")
    with view:
        words = ["/bin/tar", "-x", "-p", "-f", "-", "-C", "/"]
        _ask(node, endpoint, words, owner, check, view, _SECONDS + size / _MIN_RATE)


def _ask(
    node: Node,
    endpoint: AgentEndpoint,
    words: list[str],
    owner: Owner,
    check: Callable[[], None],
    data: Readable | None = None,
    seconds: float = _SECONDS,
) -> bytes:
    """The output of a program on the node. Failed when it cannot be run or fails."""
    try:
        ended = endpoint.run(words, owner.model_copy(update={"cwd": "/"}), _ENVIRONMENT, seconds, data, check)
    except AgentError as error:
        what = f"the job's files were not copied to {node.name}"
        raise Failed(Code.UNREACHABLE, what, str(error), f"wherry logs --node {node.name}") from None
    if ended.code:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        what = f"the job's files were not copied to {node.name}"
        raise Failed(Code.JOB_FAILED, what, lines[-1] if lines else f"exit code {ended.code}", "wherry status")
    return ended.stdout


def _require_mpi(cluster: Cluster, known: Mapping[str, str], mpi: Mpi) -> None:
    """Refused when the nodes lack the launcher's daemon, or have another version of it."""
    names = [str(mpi.prefix / "bin" / name) for name in _DAEMONS[mpi.family]]
    here = _daemons(mpi)
    remedy = f"wherry image build, then wherry down {cluster.name} and wherry up FILE"
    if not any(name in known for name in here):
        why = f"their image has none of {', '.join(names)}"
        raise _lacking(cluster, mpi, why, f"use the MPI of Debian's packages: {remedy}")
    for name in here:
        if known.get(name) != digest(name):
            raise _lacking(cluster, mpi, f"their {name} differs from this machine's: the image is older", remedy)


def _daemons(mpi: Mpi) -> list[str]:
    """Real paths of the launcher's daemons that exist on this machine."""
    names = [str(mpi.prefix / "bin" / name) for name in _DAEMONS[mpi.family]]
    return [os.path.realpath(name) for name in names if os.path.isfile(name)]


def _lacking(cluster: Cluster, mpi: Mpi, why: str, remedy: str) -> WherryError:
    return Refused(Code.UNSUPPORTED, f"the nodes of {cluster.name} lack {mpi} of {mpi.prefix}", why, remedy)


def _on_disk(
    node: Node, endpoint: AgentEndpoint, files: FileSet, owner: Owner, mpi: Mpi, check: Callable[[], None]
) -> dict[str, str]:
    """The digests of the files that a node has on its disk, by path."""
    with tempfile.TemporaryFile(dir=_SCRATCH) as names:
        names.write(b"".join(os.fsencode(name) + b"\0" for name in [*files.files, *files.links, *_daemons(mpi)]))
        names.seek(0)
        said = _ask(node, endpoint, ["/bin/sh", "-c", _SUMS], owner, check, names, _SUM_SECONDS)
    rows = (line.partition("  ") for line in os.fsdecode(said).splitlines())
    return {name: number for number, _, name in rows}


def _with_system_files(files: FileSet, known: Mapping[str, str]) -> dict[str, str]:
    """`known`, with the system files of a disk as if they were equal to ours: they belong together and must be kept."""
    kept = {name: digest(name) for name in files.files if name in known and _of_the_system(name)}
    there = {name for name in files.links if name in known and _of_the_system(name)} | _TOP
    return {**known, **kept, **{name: link_digest(files.links[name]) for name in there & set(files.links)}}


def _of_the_system(name: str) -> bool:
    return name.startswith(("/usr/", "/etc/", *(f"{top}/" for top in _TOP))) and not name.startswith("/usr/local/")


def _in_image(node: Node, endpoint: AgentEndpoint, owner: Owner, check: Callable[[], None]) -> dict[str, str]:
    """The digests of the files in a node's image, by path. Failed when the node's list cannot be read."""
    text = _ask(node, endpoint, ["/bin/cat", FILES], owner, check).decode(errors="replace")
    try:
        known = json.loads(text)
    except ValueError:
        known = None
    if not isinstance(known, dict) or not all(isinstance(value, str) for value in known.values()):
        what = f"the list of files in {node.name} cannot be read"
        raise Failed(Code.JOB_FAILED, what, f"its {FILES} was changed", f"wherry down {node.cluster}, wherry up FILE")
    return known


def _require_room(node: Node, size: int) -> None:
    most = node.memory // _SHARE
    if size > most:
        what = f"the job's files do not fit into {node.name}"
        why = f"they need {format_size(size)}; files may use {format_size(most)} of its {format_size(node.memory)}"
        raise Refused(Code.NO_CAPACITY, what, why, "give the nodes more memory in the cluster's file, then wherry up")
