"""Starts `wherry-launch`, the process that holds a job's launcher, with the job's files.

Invariant: the files with the nodes' keys are readable by the job's user alone; when `start` fails, its caller removes
the directory.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from wherry.base.bytes_text import to_bytes, to_native
from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.job import launcher_group
from wherry.job.launcher_command import LaunchPlan

_START_SECONDS = 30.0


def start(directory: Path, netns: str, plan: LaunchPlan) -> None:
    """Makes the job's directory and starts its launcher in the network namespace `netns`. Failed when it cannot."""
    owner, own = plan.owner, directory / "own"
    directory.mkdir(mode=0o711)
    own.mkdir(mode=0o700)
    for name, text in plan.files.items():
        path = own / name
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "wb") as file:
            file.write(to_bytes(text))
        os.chown(path, owner.uid, owner.gid)
    os.chown(own, owner.uid, owner.gid)
    command = [
        str(native_program("wherry-ns")),
        "--net",
        netns,
        *launcher_group.joined(directory, owner),
        "--",
        str(native_program("wherry-launch")),
        "--dir",
        str(directory),
        "--uid",
        str(owner.uid),
        "--gid",
        str(owner.gid),
        "--groups",
        ",".join(map(str, owner.groups)),
        "--cwd",
        owner.cwd,
        *(["--input"] if plan.input else []),
        "--",
        *map(to_native, plan.argv),
    ]
    try:
        done = subprocess.run(
            command,
            env={to_native(name): to_native(value) for name, value in plan.env.items()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(
            Code.TIMED_OUT, "the launcher did not start", f"waited {_START_SECONDS:.0f} s", "wherry doctor"
        ) from None
    except OSError as error:  # E2BIG: the kernel's limit, which depends on the machine
        next = "pass fewer or shorter arguments and variables"
        what = f"cannot start {plan.argv[0]}"
        raise Failed(Code.JOB_FAILED, what, os.strerror(error.errno or 0), next) from None
    if done.returncode != 0:
        why = done.stdout.removeprefix("failed ").strip() or done.stderr.strip()
        raise Failed(Code.JOB_FAILED, f"cannot start {plan.argv[0]}", why, "wherry doctor")
