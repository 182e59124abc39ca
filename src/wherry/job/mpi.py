"""Which MPI a program uses, and the launcher of the same installation.

Invariant: the launcher that is chosen belongs to the library that the ranks will load, because two MPIs do not talk to
each other. What the user owns is run as the user, never as root. Directories that are closed to the caller are passed
over, as a shell does with those on PATH.
"""

from __future__ import annotations

import functools
import os
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.model.owner import Owner
from wherry.node import elf

_VERSION_SECONDS = 20.0
_MOMENT = 0.2
_VERSION_BYTES = 1 << 16
"""Of what a launcher says when it is asked for its version, at most: it may be a program of the user's."""
_AT_ONCE = 8
"""Launchers that are asked at the same time: who asks keeps one of the threads that serve all requests."""
_TURN = 2.0
_asking = threading.BoundedSemaphore(_AT_ONCE)
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class Family(StrEnum):
    """The two MPIs with a launcher that takes an agent."""

    OPENMPI = "openmpi"
    MPICH = "mpich"


_LIBRARIES: dict[str, Family | None] = {
    "libmpi.so.40": Family.OPENMPI,
    "libmpi.so.80": Family.OPENMPI,
    "libmpi.so.12": Family.MPICH,
    "libmpich.so.12": Family.MPICH,
    "libmpi_abi.so.0": None,
    "libmpi_abi.so.1": None,
}
"""Sonames; None is the Forum's ABI, whose family the installation decides."""

_LAUNCHERS = {
    Family.OPENMPI: ("mpirun.openmpi", "mpirun", "mpiexec"),
    Family.MPICH: ("mpiexec.mpich", "mpiexec.hydra", "mpiexec"),
}
_PACKAGES = {Family.OPENMPI: "apt install openmpi-bin", Family.MPICH: "apt install mpich"}


@dataclass(frozen=True)
class Mpi:
    """An installation's launcher."""

    family: Family
    version: tuple[int, ...]
    launcher: Path

    def __str__(self) -> str:
        return f"{self.family} {'.'.join(map(str, self.version))}"

    @property
    def prefix(self) -> Path:
        """The directory above the launcher's `bin`."""
        return self.launcher.parent.parent


def find_program(word: str, owner: Owner, env: dict[str, str]) -> Path:
    """The file that `word` names for the user. Refused when there is none, or it is not executable."""
    if "/" in word:
        path = Path(owner.cwd) / word
        if not os.path.isfile(path):
            raise Refused(
                Code.NOT_FOUND, f"the program {word} is not there", f"{path} is no file", "give the program's path"
            )
        if not _may_run(path):
            raise Refused(Code.PERMISSION, f"the program {word} is not executable", str(path), f"chmod +x {path}")
        return path
    found = shutil.which(word, path=env.get("PATH", _DEFAULT_PATH))
    if not found:
        why = "it is not on PATH"
        here = f"./{word}"
        hint = f"write {here}" if os.path.isfile(Path(owner.cwd) / word) else "give the program's path"
        raise Refused(Code.NOT_FOUND, f"the program {word} is not there", why, hint)
    return Path(owner.cwd) / found


def _may_run(path: Path) -> bool:
    """By the rights of the calling thread (`as_user`), not of the process."""
    return os.access(path, os.X_OK, effective_ids=True)


def find(program: Path, owner: Owner, env: dict[str, str], choice: str | None) -> Mpi:
    """The MPI to launch `program` with. `choice` is `openmpi`, `mpich` or a launcher's path; it counts first."""
    if choice and "/" in choice:
        return _chosen_launcher(Path(owner.cwd) / choice, owner, env)
    if choice and choice not in list(Family):
        raise Refused(
            Code.USAGE, f"--mpi {choice} is not known", "it is openmpi, mpich or a launcher's path", "wherry run --help"
        )
    if choice:
        return _on_path(program, Family(choice), owner, env)
    used = _used_library(program, env.get("LD_LIBRARY_PATH", ""))
    if used is None:
        return _on_path(program, None, owner, env)
    library, family = used
    for directory in _directories_of(library):
        for mpi in _launchers_in(directory, family, owner, env):
            return mpi
    name = family or "MPI"
    raise Refused(
        Code.NOT_FOUND,
        f"no launcher belongs to the MPI that {program.name} uses",
        f"it loads {library}, and no bin directory beside it has a launcher of {name}",
        _PACKAGES[family] if family else "wherry run --mpi /path/to/its/mpirun",
    )


def _chosen_launcher(path: Path, owner: Owner, env: dict[str, str]) -> Mpi:
    if not os.path.isfile(path) or not _may_run(path):
        raise Refused(
            Code.NOT_FOUND, f"--mpi {path} is no launcher", "it is no executable file", "wherry run --mpi openmpi|mpich"
        )
    mpi = _ask(path, owner, env)
    if not mpi:
        raise Refused(
            Code.UNSUPPORTED,
            f"--mpi {path} is not supported",
            "its --version names neither Open MPI nor MPICH (hydra)",
            "wherry run --mpi openmpi|mpich",
        )
    return mpi


def _used_library(program: Path, library_path: str) -> tuple[Path, Family | None] | None:
    """The MPI library that the program loads, itself or through a library that it needs (a Fortran or C++ binding)."""
    top = elf.read(program)
    if top is None:
        return None
    for user in _with_libraries(top, library_path):
        for name in user.needed:
            if name in _LIBRARIES:
                path = elf.find_library(name, user, library_path)
                if path is None:
                    raise Refused(
                        Code.NOT_FOUND,
                        f"{program.name} needs {name}, which is not there",
                        f"not in RPATH, LD_LIBRARY_PATH or the linker's cache, as {user.path} asks",
                        "export LD_LIBRARY_PATH=/path/to/its/lib, or install it",
                    )
                return path, _LIBRARIES[name]
    return None


def _with_libraries(top: elf.Elf, library_path: str) -> Iterator[elf.Elf]:
    yield top
    for name in top.needed:
        path = elf.find_library(name, top, library_path)
        library = elf.read(path) if path else None
        if library:
            yield library


def _directories_of(library: Path) -> Iterator[Path]:
    """The `bin` directories above the library, nearest first, by the path as found and by the real one."""
    seen: set[Path] = set()
    for start in (library, library.resolve()):
        for above in list(start.parents)[:-1]:
            if above not in seen and os.path.isdir(above / "bin"):
                yield above / "bin"
            seen.add(above)


def _on_path(program: Path, family: Family | None, owner: Owner, env: dict[str, str]) -> Mpi:
    """The first launcher beside the program (a virtual environment's python) or on PATH."""
    directories = [str(program.parent), *env.get("PATH", _DEFAULT_PATH).split(":")]
    for directory in directories:
        if directory:
            # The real directory: Open MPI takes its prefix from the launcher's path, and of /bin that is nothing.
            for mpi in _launchers_in((Path(owner.cwd) / directory).resolve(), family, owner, env):
                return mpi
    wanted = str(family) if family else "MPI"
    raise Refused(
        Code.NOT_FOUND,
        f"no launcher of {wanted} found",
        "neither beside the program nor on PATH",
        _PACKAGES[family] if family else "apt install openmpi-bin, or mpich",
    )


def _launchers_in(directory: Path, family: Family | None, owner: Owner, env: dict[str, str]) -> Iterator[Mpi]:
    """Launchers of the family (of any, plain `mpirun` first) in one directory, as their own `--version` tells."""
    names = _LAUNCHERS[family] if family else ("mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.mpich")
    for name in names:
        path = directory / name
        if os.path.isfile(path) and _may_run(path):
            mpi = _ask(path, owner, env)
            if mpi and family in (None, mpi.family):
                yield mpi


def _ask(launcher: Path, owner: Owner, env: dict[str, str]) -> Mpi | None:
    about = launcher.stat()
    stamp = (about.st_ino, about.st_mtime_ns)
    text = _version_text(
        launcher, stamp, owner.uid, owner.gid, owner.groups, owner.home, env.get("LD_LIBRARY_PATH", "")
    )
    return parse_version(text, launcher)


@functools.lru_cache(maxsize=256)
def _version_text(
    launcher: Path, stamp: tuple[int, int], uid: int, gid: int, groups: tuple[int, ...], home: str, library_path: str
) -> str:
    """What `LAUNCHER --version` prints, run as the user: the file may be the user's own. `stamp` renews the cache."""
    env = {"PATH": f"{launcher.parent}:{_DEFAULT_PATH}", "LD_LIBRARY_PATH": library_path, "LC_ALL": "C", "HOME": home}
    who = {"user": uid, "group": gid, "extra_groups": groups} if os.geteuid() == 0 else {}
    if not _asking.acquire(timeout=_TURN):
        raise Refused(Code.WRONG_STATE, f"{_AT_ONCE} launchers are being asked already", "", "repeat the command")
    try:
        asked = subprocess.Popen(
            [str(launcher), "--version"],
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **who,  # type: ignore[call-overload]
        )
        return _first_words(asked)
    except OSError:
        return ""
    finally:
        _asking.release()


def _first_words(asked: subprocess.Popen[bytes]) -> str:
    """What a program says first; it is ended with its children after that, or when its time is up. When it has ended
    by itself its children are waited for a moment only."""
    said, deadline = b"", time.monotonic() + _VERSION_SECONDS
    assert asked.stdout is not None
    try:
        with asked.stdout as pipe:
            while len(said) < _VERSION_BYTES and (left := deadline - time.monotonic()) > 0:
                ended = asked.poll() is not None
                ready, _, _ = select.select([pipe], [], [], min(left, _MOMENT))
                more = os.read(pipe.fileno(), _VERSION_BYTES - len(said)) if ready else b""
                if not more and (ready or ended):
                    break
                said += more
    finally:
        with suppress(ProcessLookupError):
            os.killpg(asked.pid, signal.SIGKILL)
        asked.wait()
    return said.decode(errors="replace")


def parse_version(text: str, launcher: Path) -> Mpi | None:
    """Family and version from a launcher's `--version`; None when it is of another family."""
    for family, pattern in (
        (Family.OPENMPI, r"\((?:Open MPI|OpenRTE|PRRTE)\) (\d+(?:\.\d+)*)"),
        (Family.MPICH, r"HYDRA build details:\s+Version:\s+(\d+(?:\.\d+)*)"),
    ):
        if match := re.search(pattern, text):
            return Mpi(family, tuple(int(part) for part in match[1].split(".")), launcher)
    return None
