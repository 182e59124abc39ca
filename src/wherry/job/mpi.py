"""The MPI that a program uses, and the launcher of the same installation.

Invariant: the chosen launcher belongs to the library that the ranks will load, because two MPIs do not interoperate. A
launcher is run as the user, never as root. Directories that the caller may not enter are skipped, as a shell does with
those on PATH.
"""

from __future__ import annotations

import functools
import os
import re
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
from wherry.base.wait import readable
from wherry.model.owner import Owner
from wherry.node import elf

_VERSION_SECONDS = 60.0
_MOMENT = 0.2
_VERSION_BYTES = 1 << 16
"""Limit of the output of `--version` that is read: the launcher may be any program of the user's."""
_PARALLEL, _QUEUE_SECONDS = 8, 2.0
"""Launchers that run at the same time, and how long others wait: each occupies a thread that serves requests."""
_running = threading.BoundedSemaphore(_PARALLEL)
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class Family(StrEnum):
    """The two MPIs whose launcher starts its daemons by a given agent."""

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
"""MPI libraries by soname; None: the standard ABI, whose family depends on the installation."""

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
    """The program file that `word` names for the user. Refused when it does not exist or is not executable."""
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
    """Checks the rights of the calling thread (`as_user`), not of the process."""
    return os.access(path, os.X_OK, effective_ids=True)


def find(program: Path, owner: Owner, env: dict[str, str], choice: str | None) -> Mpi:
    """The MPI to launch `program` with. `choice` is `openmpi`, `mpich` or a launcher's path, and takes precedence."""
    if choice and "/" in choice:
        chosen = _chosen_launcher(Path(owner.cwd) / choice, owner, env)
        _require_family(program, chosen.family, choice, env)
        return chosen
    if choice and choice not in list(Family):
        raise Refused(
            Code.USAGE, f"--mpi {choice} is not known", "it is openmpi, mpich or a launcher's path", "wherry run --help"
        )
    if choice:
        _require_family(program, Family(choice), choice, env)
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


def _require_family(program: Path, family: Family, choice: str, env: dict[str, str]) -> None:
    """Refused when the program is linked with the other MPI: each rank would be a job of its own, of one rank."""
    top = elf.read(program)
    for user in _with_libraries(top, env.get("LD_LIBRARY_PATH", "")) if top else ():
        for name in user.needed:
            if (linked := _LIBRARIES.get(name)) not in (None, family):
                what, why = f"{program.name} cannot be run by --mpi {choice}", f"it is linked with {name} of {linked}"
                raise Refused(Code.UNSUPPORTED, what, why, f"leave --mpi out, or --mpi {linked}")


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
            # The real directory: Open MPI derives its prefix from the launcher's path, which would be empty for /bin.
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
    """Launchers of the family (None: any, plain `mpirun` first) in one directory, according to `--version`."""
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
    user = (owner.uid, owner.gid, owner.groups, owner.home)
    try:
        return _version(launcher, stamp, *user, env.get("LD_LIBRARY_PATH", ""))
    except LookupError:
        return None


@functools.lru_cache(maxsize=256)
def _version(
    launcher: Path, stamp: tuple[int, int], uid: int, gid: int, groups: tuple[int, ...], home: str, library_path: str
) -> Mpi:
    """The MPI that `LAUNCHER --version` names, run as the user, since the file may be the user's own.

    `stamp` invalidates the cache. LookupError, which is not cached, when the launcher names none: it may have failed
    because the machine was busy.
    """
    env = {"PATH": f"{launcher.parent}:{_DEFAULT_PATH}", "LD_LIBRARY_PATH": library_path, "LC_ALL": "C", "HOME": home}
    who = {"user": uid, "group": gid, "extra_groups": groups} if os.geteuid() == 0 else {}
    if not _running.acquire(timeout=_QUEUE_SECONDS):
        why = f"{_PARALLEL} launchers are asked for their version at this moment"
        raise Refused(Code.WRONG_STATE, f"the version of {launcher} could not be found out", why, "repeat the command")
    try:
        process = subprocess.Popen(
            [str(launcher), "--version"],
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **who,  # type: ignore[call-overload]
        )
        found = parse_version(_output(process), launcher)
    except OSError as error:
        raise LookupError(launcher) from error
    finally:
        _running.release()
    if found is None:
        raise LookupError(launcher)
    return found


def _output(process: subprocess.Popen[bytes]) -> str:
    """Reads a program's output up to _VERSION_BYTES, its end or the timeout; then kills its process group.

    Children that keep the pipe open after the program ended are waited for _MOMENT only.
    """
    output, deadline = b"", time.monotonic() + _VERSION_SECONDS
    assert process.stdout is not None
    try:
        with process.stdout as pipe:
            while len(output) < _VERSION_BYTES and (left := deadline - time.monotonic()) > 0:
                ended = process.poll() is not None
                ready = readable(pipe, min(left, _MOMENT))
                more = os.read(pipe.fileno(), _VERSION_BYTES - len(output)) if ready else b""
                if not more and (ready or ended):
                    break
                output += more
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return output.decode(errors="replace")


def parse_version(text: str, launcher: Path) -> Mpi | None:
    """Family and version from the output of `--version`; None for another program."""
    for family, pattern in (
        (Family.OPENMPI, r"\((?:Open MPI|OpenRTE|PRRTE)\) (\d{1,9}(?:\.\d{1,9})*)"),
        (Family.MPICH, r"HYDRA build details:\s+Version:\s+(\d{1,9}(?:\.\d{1,9})*)"),
    ):
        if match := re.search(pattern, text):
            return Mpi(family, tuple(int(part) for part in match[1].split(".")), launcher)
    return None
