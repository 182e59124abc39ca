"""Copies what a job needs to nodes that do not see this machine's files: virtual machines.

A container shows its user's files in their place. A virtual machine has its image, and says in it what it has; what the
job needs beyond that is copied under the same names into the machine's memory, so it travels with every move (on a
machine with a disk, to that, where what the image has below /usr and the like stays as it is):

    the program with its libraries, or the script with its interpreter
    what the cluster's file names under `needs`: files, and directories with all that is in them
    the working directory, empty

What ranks write stays in their node. Invariant: the files are read with the owner's rights and written with them.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.units import format_size
from wherry.job.agent_client import AgentEndpoint, AgentError, Readable
from wherry.job.launch import slots_by_node
from wherry.job.mpi import Family, Mpi
from wherry.model.objects import Cluster, Node
from wherry.model.owner import Owner
from wherry.model.spec.cluster import names_disk
from wherry.node.as_user import as_user
from wherry.node.file_closure import FileSet, digest, link_digest
from wherry.node.vm.image.root import FILES

_AT_ONCE = 8
_SECONDS = 60.0
"""For the talk with a node, beside what the bytes take at the least rate."""
_LEAST_RATE = 1 << 20
"""Bytes per second that a machine under emulation takes even on a loaded host."""
_SHARE = 2
"""The files of a job may have one part in so many of a node's memory: they lie in it."""
_DAEMONS = {Family.OPENMPI: ("orted", "prted"), Family.MPICH: ("hydra_pmi_proxy",)}
_ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
_TOP = frozenset(("/bin", "/lib", "/lib64", "/sbin"))
"""Links in the root, or directories: every system on a disk has its own."""
_SUMS = "xargs -0 sha256sum 2>/dev/null; true"
_SUM_SECONDS = 300.0
"""For reading all the files that a job needs, under emulation."""


def targets(nodes: Iterable[Node], ranks: int) -> list[Node]:
    """Those of a job's nodes that have ranks and do not see this machine's files."""
    every = list(nodes)
    with_ranks = {seat.name for seat in slots_by_node(every, ranks)}
    return [node for node in every if node.kind == "vm" and node.name in with_ranks]


def gather(cluster: Cluster, program: Path, owner: Owner, env: Mapping[str, str], ours: Iterable[Path]) -> FileSet:
    """What the job needs; `ours` are files of Wherry's. Refused when something of it is not there."""
    files = FileSet(env.get("LD_LIBRARY_PATH", ""))

    def theirs() -> None:
        files.add_program(program)
        files.add(owner.cwd)
        for path in cluster.spec.needs:
            files.add_tree(path)

    try:
        as_user(owner, theirs)
    except OSError as error:
        what = f"{error.filename or program} cannot be copied to the nodes of {cluster.name}"
        raise Refused(Code.NOT_FOUND, what, os.strerror(error.errno or 0), f"ls -l {error.filename}") from None
    if files.missing:
        library, wanted_by = next(iter(files.missing.items()))
        why = "it is neither where RPATH and LD_LIBRARY_PATH say nor in the linker's cache"
        remedy = "export LD_LIBRARY_PATH=/path/to/its/lib, or install it"
        raise Refused(Code.NOT_FOUND, f"{wanted_by} needs {library}, which is not there", why, remedy)
    for path in ours:
        files.add_program(path)
    return files


def copy(
    cluster: Cluster,
    nodes: Iterable[tuple[Node, AgentEndpoint]],
    files: FileSet,
    owner: Owner,
    mpi: Mpi,
    check: Callable[[], None],
) -> None:
    """Copies to every node what it lacks. Refused when a node cannot hold it or lacks the MPI; Failed else. What
    `check` raises, which is called before each part that is sent, ends it."""
    packed: dict[str, IO[bytes]] = {}
    try:
        wanted = []
        for node, endpoint in nodes:
            check()
            disk = names_disk(cluster.spec.flavor(node.index).image)
            known = _on_disk(node, endpoint, files, owner, mpi) if disk else _in_image(node, endpoint, owner)
            _require_mpi(cluster, known, mpi)
            if disk:
                known = _as_it_is(files, known)
            else:
                _require_room(node, sum(about.st_size for name, about in files.files.items() if name not in known))
            text = json.dumps(known, sort_keys=True)
            if text not in packed:
                packed[text] = _pack(files, owner, known)
            wanted.append((node, endpoint, packed[text]))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda target: _send(target[0], target[1], target[2], owner, check), wanted))
    finally:
        for archive in packed.values():
            archive.close()


def _pack(files: FileSet, owner: Owner, known: Mapping[str, str]) -> IO[bytes]:
    """An archive of what is not known, in a file that has no name."""
    archive = tempfile.TemporaryFile(dir="/var/tmp")

    def write() -> None:
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
            files.write(tar, (owner.uid, owner.gid), known)
        archive.flush()  # it is read under another descriptor

    try:
        as_user(owner, write)
    except OSError as error:
        archive.close()
        what = f"{error.filename or 'a file of the job'} cannot be copied to the nodes"
        raise Failed(Code.JOB_FAILED, what, error.strerror or str(error), "repeat the command") from None
    return archive


class _Checked:
    """What is read part by part, with `check` called before each."""

    def __init__(self, file: IO[bytes], check: Callable[[], None]) -> None:
        self._file, self._check = file, check

    def read(self, size: int) -> bytes:
        self._check()
        return self._file.read(size)


def _send(node: Node, endpoint: AgentEndpoint, archive: IO[bytes], owner: Owner, check: Callable[[], None]) -> None:
    size = os.fstat(archive.fileno()).st_size
    view = os.fdopen(os.open(f"/proc/self/fd/{archive.fileno()}", os.O_RDONLY | os.O_CLOEXEC), "rb")
    with view:
        words = ["/bin/tar", "-x", "-p", "-f", "-", "-C", "/"]
        _ask(node, endpoint, words, owner, _Checked(view, check), _SECONDS + size / _LEAST_RATE)


def _ask(
    node: Node,
    endpoint: AgentEndpoint,
    words: list[str],
    owner: Owner,
    data: Readable | None = None,
    seconds: float = _SECONDS,
) -> bytes:
    """What a program on the node writes. Failed when it cannot be run or says no."""
    try:
        ended = endpoint.run(words, owner.model_copy(update={"cwd": "/"}), _ENVIRONMENT, seconds, data)
    except AgentError as error:
        what = f"the job's files were not copied to {node.name}"
        raise Failed(Code.UNREACHABLE, what, str(error), f"wherry logs --node {node.name}") from None
    if ended.code:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        what = f"the job's files were not copied to {node.name}"
        raise Failed(Code.JOB_FAILED, what, lines[-1] if lines else f"exit code {ended.code}", "wherry status")
    return ended.stdout


def _require_mpi(cluster: Cluster, known: Mapping[str, str], mpi: Mpi) -> None:
    """Refused when the nodes lack what the launcher starts on them, or have it of another version."""
    names = [str(mpi.prefix / "bin" / name) for name in _DAEMONS[mpi.family]]
    here = _daemons(mpi)
    remedy = f"wherry image build, then wherry down {cluster.name} and wherry up FILE"
    if not any(name in known for name in here):
        why = f"their image has none of {', '.join(names)}"
        raise _lacking(cluster, mpi, why, f"use the MPI of Debian's packages: {remedy}")
    for name in here:
        if known.get(name) != digest(name):
            raise _lacking(cluster, mpi, f"{name} is another one there: the image is older than it", remedy)


def _daemons(mpi: Mpi) -> list[str]:
    """What the launcher starts on nodes, by its real name, as far as it is here."""
    names = [str(mpi.prefix / "bin" / name) for name in _DAEMONS[mpi.family]]
    return [os.path.realpath(name) for name in names if os.path.isfile(name)]


def _lacking(cluster: Cluster, mpi: Mpi, why: str, remedy: str) -> WherryError:
    return Refused(Code.UNSUPPORTED, f"the nodes of {cluster.name} lack {mpi} of {mpi.prefix}", why, remedy)


def _on_disk(node: Node, endpoint: AgentEndpoint, files: FileSet, owner: Owner, mpi: Mpi) -> dict[str, str]:
    """Which of the files a node has on its disk, by digest."""
    with tempfile.TemporaryFile(dir="/var/tmp") as names:
        names.write(b"".join(os.fsencode(name) + b"\0" for name in [*files.files, *files.links, *_daemons(mpi)]))
        names.seek(0)
        said = _ask(node, endpoint, ["/bin/sh", "-c", _SUMS], owner, names, _SUM_SECONDS)
    rows = (line.partition("  ") for line in os.fsdecode(said).splitlines())
    return {name: number for number, _, name in rows}


def _as_it_is(files: FileSet, known: Mapping[str, str]) -> dict[str, str]:
    """What a disk has, with the files of its system as if they were the same: they fit each other, not ours."""
    kept = {name: digest(name) for name in files.files if name in known and _of_the_system(name)}
    there = {name for name in files.links if name in known and _of_the_system(name)} | _TOP
    return {**known, **kept, **{name: link_digest(files.links[name]) for name in there & set(files.links)}}


def _of_the_system(name: str) -> bool:
    return name.startswith(("/usr/", "/etc/", *(f"{top}/" for top in _TOP))) and not name.startswith("/usr/local/")


def _in_image(node: Node, endpoint: AgentEndpoint, owner: Owner) -> dict[str, str]:
    """What a node has, by digest. Failed when it does not say that."""
    text = _ask(node, endpoint, ["/bin/cat", FILES], owner).decode(errors="replace")
    try:
        known = json.loads(text)
    except ValueError:
        known = None
    if not isinstance(known, dict) or not all(isinstance(value, str) for value in known.values()):
        what = f"{node.name} does not say which files it has"
        raise Failed(Code.JOB_FAILED, what, f"its {FILES} was changed", f"wherry down {node.cluster}, wherry up FILE")
    return known


def _require_room(node: Node, size: int) -> None:
    most = node.memory // _SHARE
    if size > most:
        what = f"the job's files do not fit into {node.name}"
        why = f"they have {format_size(size)}; {format_size(most)} of its {format_size(node.memory)} may be files"
        raise Refused(Code.NO_CAPACITY, what, why, "give the nodes more memory in the cluster's file, then wherry up")
