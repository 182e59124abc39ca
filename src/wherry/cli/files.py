"""Reads cluster and fabric files. Wrong files are refused here, so that the error needs no daemon."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.base.paths import examples, see_examples
from wherry.base.units import format_size
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import load_yaml, parse

LARGEST_FILE = 2**20
"""Bytes of the largest file that is read: reading it as YAML takes some seconds."""


def read_cluster(path: Path) -> dict[str, Any]:
    """The content of a valid cluster file, as the daemon takes it."""
    data = mapping(path, "wherry up", examples())
    if data.get("kind") == "fabric":
        what = f"{path} is a fabric file, not a cluster file"
        raise Refused(Code.INVALID_FILE, what, "its kind is fabric", f"wherry fabric up {path}")
    parse(ClusterSpec, data, str(path))
    return data


def read_fabric(path: Path) -> dict[str, Any]:
    """The content of a valid fabric file, as the daemon takes it."""
    data = mapping(path, "wherry fabric up", examples())
    if data.get("kind", "container") in ("container", "vm"):
        what = f"{path} is not a fabric file"
        raise Refused(Code.INVALID_FILE, what, "its kind is not fabric", f"wherry up {path}")
    parse(FabricSpec, data, str(path))
    return _in_this_allocation(data)


def _in_this_allocation(data: dict[str, Any]) -> dict[str, Any]:
    """A fabric on Slurm that names no allocation is on the one in which this command is given, if it is in one."""
    slurm = data.get("slurm")
    job = os.environ.get("SLURM_JOB_ID", "")
    if data.get("driver") != "slurm" or not isinstance(slurm, dict) or "nodes" in slurm or "job" in slurm:
        return data
    return {**data, "slurm": {**slurm, "job": int(job)}} if job.isascii() and job.isdigit() else data


def mapping(path: Path, command: str, valid: Path | None) -> dict[str, Any]:
    """The content of a file that `command` takes. Errors (INVALID_FILE, NOT_FOUND) name the directory of valid ones."""
    data = load_yaml(_text(path, command, valid), str(path))
    if not isinstance(data, dict):
        raise Refused(Code.INVALID_FILE, f"{path} is not a mapping of keys to values", "", see_examples(valid))
    return data


def _text(path: Path, command: str, valid: Path | None) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        text = content.decode()
    except UnicodeDecodeError:
        raise Refused(Code.INVALID_FILE, f"{path} is not text", "it is not UTF-8", see_examples(valid)) from None
    except OSError as error:
        code = Code.NOT_FOUND if isinstance(error, FileNotFoundError) else Code.INVALID_FILE
        raise Refused(
            code, f"cannot read {path}", error.strerror or str(error), _instead(path, command, valid)
        ) from None
    if len(content) > LARGEST_FILE:
        why = f"a file that wherry reads has at most {format_size(LARGEST_FILE)}"
        raise Refused(Code.INVALID_FILE, f"{path} is too large", why, "check that it is the file you meant")
    return text


def _instead(path: Path, command: str, valid: Path | None) -> str:
    """The command for the example of this name, whose directory the user may have left; else where examples are."""
    example = valid / path.name if valid else None
    return f"{command} {shlex.quote(str(example))}" if example and example.is_file() else see_examples(valid)
