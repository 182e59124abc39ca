"""The evidence of a failed test: why it failed, what the machine did, and the logs of its instances of Wherry.

All of it is in `build/test/failed/NAME/`: the report, PSI, the processes, and of each instance of this test worker its
operations and its logs (the daemon's, CRIU's, runc's, gateways').
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from names import is_ours
from wherry.base.paths import Instance, instances

_LOG = 4 << 20
"""Bytes of one log; larger ones are left."""
_NAME = 200
"""Characters of a copied log's name, its last ones."""
_NOT_OURS = {"root", "rootfs", "merged", "binds", "private", "arriving", "sys", "mount", "memory"}
"""Directories of a placement that show what is elsewhere: a user's directories may hold this one."""
_SECONDS = 30
"""Of one command."""


def keep(directory: Path, report: pytest.TestReport) -> None:
    """Keeps it in a new directory below this one."""
    made = _made(directory, re.sub(r"[^\w.\[\]-]+", "_", report.nodeid.removeprefix("tests/"))[:150])
    (made / "report.txt").write_text(
        f"{report.nodeid}, {report.when}\n\n{report.longreprtext}\n\n"
        + "\n\n".join(f"{title}\n{text}" for title, text in report.sections)
    )
    (made / "pressure.txt").write_text("".join(_pressures()))
    _write(made / "processes.txt", "ps", "-eo", "pid,ppid,pgid,stat,pcpu,etimes,wchan:20,args", "--forest")
    for instance in instances():
        if is_ours(instance.name):
            _keep_instance(made / instance.name, instance)


def _made(directory: Path, name: str) -> Path:
    for number in range(1, 100):
        made = directory / (name if number == 1 else f"{name}.{number}")
        if not made.exists():
            break
    made.mkdir(parents=True)
    return made


def _pressures() -> list[str]:
    return [f"{file.name}\n{file.read_text()}\n" for file in sorted(Path("/proc/pressure").glob("*"))]


def _keep_instance(directory: Path, instance: Instance) -> None:
    directory.mkdir()
    if (instance.run / "lock").exists():
        environment = {**os.environ, "WHERRY_INSTANCE": instance.name}
        _write(directory / "operations.txt", str(Path(sys.executable).parent / "wherry"), "op", "list", **environment)
    for top in (instance.state, instance.run):
        for parent, below, files in os.walk(top):
            below[:] = [name for name in below if name not in _NOT_OURS]
            for name in files:
                file = Path(parent, name)
                if name == "log" or name.endswith(".log"):
                    with contextlib.suppress(OSError):  # it went away meanwhile
                        if file.is_file() and file.stat().st_size < _LOG:
                            shutil.copyfile(file, directory / str(file.relative_to(top)).replace("/", "_")[-_NAME:])


def _write(file: Path, *command: str, **environment: str) -> None:
    try:
        done = subprocess.run(
            command, env=environment or None, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS
        )
        file.write_bytes(done.stdout + done.stderr)
    except (OSError, subprocess.TimeoutExpired) as error:
        file.write_text(repr(error))
