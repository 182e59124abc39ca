"""Finds the CRIU that works on this machine.

Candidates are the one in `WHERRY_CRIU` (then no other), that of an agent's bundle, the system's, and the private
prefixes made by `install`, newest first. A candidate passes when `criu check` succeeds and a process with an
established TCP connection survives dump and restore. Results are cached per kernel and binary in one small file.
`python -m wherry.node.container.criu.probe` prints the result; with `--ensure` it first downloads a CRIU if none works.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict, cast

from wherry.base.atomic_write import write_atomically
from wherry.base.errors import WherryError
from wherry.base.paths import bundled_criu
from wherry.base.remedies import setup
from wherry.base.remembered import Undecided, remembered
from wherry.node.container.criu import install as criu_install
from wherry.node.container.criu.selftest import first_error, self_test

log = logging.getLogger("wherry.criu")
_KDAT = Path("/run/criu.kdat")  # CRIU's cache of kernel features
_TIMEOUT = 60.0  # seconds for `criu check`, which takes about 0.2


@dataclass(frozen=True)
class Criu:
    """One CRIU. `argv` starts it, `path` is one executable for that; `reason`: why it was chosen, or the failure."""

    argv: tuple[str, ...]
    path: str
    version: str
    works: bool
    reason: str


class _Answer(TypedDict):
    version: str
    works: bool
    reason: str


@dataclass(frozen=True)
class _Candidate:
    origin: str
    argv: tuple[str, ...]
    path: str

    @property
    def binary(self) -> Path:
        return Path(self.argv[-1])


def directory() -> Path:
    """Directory of private prefixes and cached results, shared by all instances (not a valid instance name)."""
    return Path("/var/lib/wherry/criu-versions")


def find(again: bool = False) -> Criu:
    """The CRIU to use. `works` is False when none does; `again` repeats tests that failed before."""
    candidates = list(_candidates())
    tried: list[str] = []
    with _answers() as answers:
        for candidate in candidates:
            key = _key(candidate)
            kept = answers.get(key)
            if kept is None or (again and not kept["works"]):
                try:
                    kept = _probe(candidate)
                except Undecided as undecided:  # it is tried again, by the next caller
                    kept = cast(_Answer, undecided.answer)
                else:
                    if os.geteuid() == 0:
                        answers[key] = kept
            if kept["works"]:
                _prime(candidate)
                return Criu(candidate.argv, candidate.path, kept["version"], True, _why(candidate, tried))
            tried.append(f"{candidate.origin} {kept['version']}: {kept['reason']}")
    argv, path = (candidates[0].argv, candidates[0].path) if candidates else ((), "")
    return Criu(argv, path, "", False, "; ".join(tried) or "no CRIU is installed")


def obstacle() -> str:
    """Why no CRIU moves nodes of this machine, with the remedy; empty when one works."""
    found = find()
    return "" if found.works else f"no CRIU works on this machine: {found.reason} ({setup()})"


@remembered()
def lazy_obstacle() -> str:
    """Why CRIU cannot leave the memory of restored processes to a page server; empty when it can."""
    feature = ("check", "--feature", "uffd-noncoop")
    try:
        done = subprocess.run([*find().argv, *feature], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Undecided(str(error), str(error)) from None
    return "" if done.returncode == 0 else first_error(done.stderr + done.stdout) or "CRIU lacks lazy restore"


def ensure() -> Criu:
    """A working CRIU; downloads one into a private prefix if there is none."""
    criu = find(again=True)
    if not criu.works and not os.environ.get("WHERRY_CRIU"):
        criu_install.install_private(directory())
        criu = find()
    return criu


def _candidates() -> Iterator[_Candidate]:
    named = os.environ.get("WHERRY_CRIU")
    if named:
        yield _Candidate("WHERRY_CRIU", (named,), named)
        return
    if (bundled := bundled_criu()) is not None:
        yield _Candidate("the bundle's", criu_install.command(bundled), str(criu_install.starter(bundled)))
    system = shutil.which("criu", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if system:
        yield _Candidate("the system's", (system,), system)
    prefixes = [path for path in directory().glob("[0-9]*") if path.is_dir()]
    for prefix in sorted(prefixes, key=lambda path: _numbers(path.name), reverse=True):
        yield _Candidate("private", criu_install.command(prefix), str(criu_install.starter(prefix)))


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _key(candidate: _Candidate) -> str:
    try:
        stat = candidate.binary.stat()
    except OSError:
        return f"{os.uname().release} {candidate.binary} absent"
    return f"{os.uname().release} {candidate.binary} {stat.st_size} {stat.st_mtime_ns}"


def _probe(candidate: _Candidate) -> _Answer:
    """Version, whether it works, and the first thing that failed. Undecided when CRIU did not answer in time."""
    if os.geteuid() != 0:
        return {"version": "", "works": False, "reason": f"not tried yet on this kernel; run as root: {setup()}"}
    version = ""
    try:
        shown = _criu(candidate, "--version")
        match = re.search(r"Version:\s*(\S+)", shown.stdout)
        version = match[1] if match else "?"
        check = _criu(candidate, "check")
        failure = self_test(candidate.argv) if check.returncode == 0 else ""
    except OSError as error:
        return {"version": version, "works": False, "reason": str(error)}
    except subprocess.TimeoutExpired as error:
        raise Undecided(_Answer(version=version, works=False, reason=str(error)), str(error)) from None
    if check.returncode != 0:
        reason = first_error(check.stderr + check.stdout) or f"exit code {check.returncode}"
        return {"version": version, "works": False, "reason": f"criu check: {reason}"}
    return {"version": version, "works": not failure, "reason": failure}


def _criu(candidate: _Candidate, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*candidate.argv, *words], capture_output=True, text=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL, cwd="/"
    )


def _why(candidate: _Candidate, failed: list[str]) -> str:
    passed = f"{candidate.origin} passes criu check and the self-test"
    return f"{passed} ({'; '.join(failed)})" if failed else passed


def _prime(candidate: _Candidate) -> None:
    """Makes CRIU cache the kernel's features now, so that no start in a move probes them (30 ms and more).

    CRIU writes its cache only when /run is a tmpfs, and not when a killed CRIU left a temporary file. So it runs with a
    tmpfs on a private /run, and the cache, valid until the next boot, is copied out. Without it moves are slower, so a
    failure here does not make them fail.
    """
    if os.geteuid() != 0 or (_KDAT.exists() and _KDAT.stat().st_mtime > _boot_time()):
        return
    new = _KDAT.with_name(f"{_KDAT.name}.{os.getpid()}")
    try:
        _cache_kernel_features(candidate, new)
    except (OSError, subprocess.TimeoutExpired):  # /run is full, perhaps
        log.warning("CRIU's cache of kernel features could not be made", exc_info=True)
        with suppress(OSError):
            new.unlink(missing_ok=True)


def _cache_kernel_features(candidate: _Candidate, new: Path) -> None:
    script = 'mount -t tmpfs run /run && "$@" check >/dev/null 2>&1; cat /run/criu.kdat'
    words = ["unshare", "--mount", "sh", "-c", script, "prime", *candidate.argv]
    found = subprocess.run(words, capture_output=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL).stdout
    if found:
        new.write_bytes(found)
        os.replace(new, _KDAT)
    _KDAT.with_name(_KDAT.name + ".tmp").unlink(missing_ok=True)


def _boot_time() -> int:
    """Seconds since 1970."""
    (line,) = re.findall(r"(?m)^btime (\d+)", Path("/proc/stat").read_text())
    return int(line)


@contextmanager
def _answers() -> Iterator[dict[str, _Answer]]:
    """The cached results under a file lock; additions are saved if the caller is root."""
    file = directory() / "answers.json"
    if os.geteuid() != 0:
        yield _read(file)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answers = _read(file)
        before = dict(answers)
        try:
            yield answers
        finally:
            if answers != before:
                try:
                    write_atomically(file, json.dumps(answers, indent=1).encode(), 0o644)
                except OSError:  # the disk is full, perhaps: the next process tries CRIU again
                    log.warning("the findings about CRIU could not be kept", exc_info=True)


def _read(file: Path) -> dict[str, _Answer]:
    try:
        answers = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return answers if isinstance(answers, dict) else {}


def main() -> int:
    """Prints the result as JSON; exit code 1 when no CRIU works."""
    try:
        criu = ensure() if "--ensure" in sys.argv[1:] else find()
    except WherryError as error:
        print(json.dumps({"works": False, **error.to_dict()}, indent=1))
        return 1
    print(json.dumps(asdict(criu), indent=1))
    return 0 if criu.works else 1


if __name__ == "__main__":
    sys.exit(main())
