"""The key of a program: hash of its files, class of its arguments, number of its ranks.

Invariant: reads files with the caller's rights, which are the job's owner's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from wherry.model.job_request import JobRequest
from wherry.model.kept_words import KEPT, kept_words
from wherry.model.records import ProgramKey

_INTERPRETER = re.compile(r"(python|perl|ruby|julia|Rscript|bash|dash|sh)[\d.]*")
_PASSING = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\d{8,}|(?<=[._-])\d{5,}|(?<=tmp)[\w]{6,}")
"""Parts of names that differ from run to run: a UUID, a date or a process id."""


def program_key(request: JobRequest, paths: Sequence[Path]) -> ProgramKey:
    """The key of a job whose programs are at these paths."""
    digest = hashlib.sha256()
    arguments = list[str]()
    for path, words in zip(paths, request.command_lines, strict=True):
        digest.update(_digest(path).encode())
        if script := _script(path, words[1:], Path(request.owner.cwd)):
            digest.update(_digest(script).encode())
        arguments += [*([path.name] if arguments or len(paths) > 1 else []), *normalised(words[1:])]
    ranks = [str(program.ranks) for program in request.programs]
    return ProgramKey(
        name=" : ".join(path.name for path in paths)[:KEPT],
        digest=digest.hexdigest()[:16],
        arguments=_told_apart([*arguments, *ranks]),
        ranks=request.ranks,
        uid=request.owner.uid,
    )


def _told_apart(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments; of very many the first ones and a hash of all, as they are in rows."""
    shown, left = kept_words(arguments)
    return (*shown, hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:16]) if left else shown


def normalised(arguments: Sequence[str]) -> tuple[str, ...]:
    """The class of arguments: of paths the last part alone, without the parts that differ from run to run. Numbers are
    kept, as they are sizes."""
    found = []
    for word in arguments:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        if "/" in value:
            value = value.rstrip("/").rsplit("/", 1)[-1]
        found.append(f"{option}{equals}{value if value.isdigit() else _PASSING.sub('#', value)}")
    return tuple(found)


def _script(program: Path, arguments: Sequence[str], here: Path) -> Path | None:
    """The file that an interpreter runs: its first argument that is no option."""
    if not _INTERPRETER.fullmatch(program.name):
        return None
    word = next((word for word in arguments if not word.startswith("-")), None)
    path = here / word if word else None
    try:
        return path if path is not None and path.is_file() else None
    except OSError:  # a command line after -c, which is no path
        return None


def _digest(path: Path) -> str:
    try:
        stat = path.stat()
        return _content(path, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    except OSError:  # it may be run, and not be read: its place and time are used instead
        return str(path)


@lru_cache(maxsize=64)
def _content(path: Path, *_state: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
