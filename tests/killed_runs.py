"""Removes the leftovers of a killed run of tests: its processes, and its instances of Wherry with all that these made.

Every process of a run has the variable TESTS_OF_RUN, which names the process that began the run; every name that
`names.own_name` gives is kept in a file below /run with it. `python tests/killed_runs.py`, with which `make test`
begins, removes the leftovers of runs whose process is gone, and nothing of a user or of a run that continues.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

VARIABLE = "TESTS_OF_RUN"
NAMES = Path("/run/wherry-tests")
_SECONDS = 300
"""Of one command; the removal of an instance ends machines and programs that hang."""


def begin() -> None:
    """Begins a run with this process, unless it belongs to one already."""
    os.environ.setdefault(VARIABLE, named(os.getpid()))


def named(pid: int) -> str:
    """The run that a process begins: its number, its PID namespace, and when it began."""
    return f"{pid} {_namespace()} {_begun(pid)}"


def note(name: str) -> None:
    """Records that a name is the run's. Only root makes objects that would be left."""
    if os.geteuid() == 0:
        NAMES.mkdir(mode=0o755, exist_ok=True)
        (NAMES / name).write_text(os.environ.get(VARIABLE, ""))


def names() -> set[str]:
    """The names that this run has given."""
    found = NAMES.glob("*") if NAMES.exists() else ()
    return {file.name for file in found if file.read_text() == os.environ.get(VARIABLE)}


def remove(only: str | None = None) -> list[str]:
    """Removes the leftovers of killed runs, or only those of the named run; returns a line for each of them."""
    said = []
    left = [(pid, run) for pid, run in _processes() if only in (None, run) and not _goes_on(run)]
    for pid, run in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            said.append(f"process {pid} of the run {run}")
    for file in sorted(NAMES.glob("*")) if NAMES.exists() else []:
        run = file.read_text()
        if only in (None, run) and not _goes_on(run):
            said += _remove(file.name)
            file.unlink(missing_ok=True)
    return said


def _begun(pid: int) -> str:
    """When a process began, in ticks (proc(5)); empty when there is none, or only its exit code is left of it."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]


def _goes_on(run: str) -> bool:
    """Whether the process that began a run is there. One of another PID namespace, as of a container, is not ours."""
    pid, _, rest = run.partition(" ")
    namespace, _, begun = rest.partition(" ")
    return namespace != _namespace() or (pid.isdigit() and begun != "" and _begun(int(pid)) == begun)


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _processes() -> list[tuple[int, str]]:
    """All processes of runs, and of which."""
    found, mark = [], f"{VARIABLE}=".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            found += [(int(name), word.removeprefix(mark).decode()) for word in words if word.startswith(mark)]
    return found


def _remove(name: str) -> list[str]:
    from wherry.base.paths import instances

    said = []
    if name in {one.name for one in instances()}:
        said.append(f"the instance {name}")
        words = [str(Path(sys.executable).parent / "wherry"), "down", "--all", "--yes"]
        _run(*words, WHERRY_INSTANCE=name)
    made = f"wherry-{name}"
    for one in (*Path("/run/netns").glob(f"{made}*"), *Path("/sys/class/net").glob(f"{made}*")):
        said.append(str(one))
        _run(*(("ip", "netns", "del") if "netns" in one.parts else ("ip", "link", "del")), one.name)
    for one in (*Path("/run").glob(f"wherry-lab-{name}*"), *Path("/tmp").glob(f"{made}-*")):  # noqa: S108 - the tests'
        said.append(str(one))
        shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink(missing_ok=True)
    return said


def _run(*words: str, **environment: str) -> None:
    done = subprocess.run(
        words, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=_SECONDS,
    )  # fmt: skip
    if done.returncode:
        print(f"{' '.join(words)}: {done.stderr.strip()}", file=sys.stderr)


if __name__ == "__main__":
    for one in remove():
        print(f"test: an earlier run had left {one}")
