"""Starts `wherry-launch`, the process that holds a job's launcher, with the job's files.

Invariant: the files with the nodes' keys are readable by the job's user alone; when `start` fails, its caller removes
the directory.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

from wherry.base.bytes_text import to_bytes, to_native
from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.job import launcher_sandbox
from wherry.job.launcher_command import LaunchPlan
from wherry.model.accounts import is_account
from wherry.model.owner import Owner

_START_SECONDS = 30.0
_ROOT = Owner(uid=0, gid=0, home="/", cwd="/")


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
    outside = {to_native(name): to_native(value) for name, value in plan.env.items()}
    if is_account(owner.uid):
        program = launcher_sandbox.make(directory, netns, plan)
        command, owner, outside = [], _ROOT, {"PATH": os.environ.get("PATH", os.defpath)}
    else:
        program = ["--", *map(to_native, plan.argv)]
        command = [str(native_program("wherry-ns")), "--net", netns, "--"]
    command += [str(native_program("wherry-launch")), "--dir", str(directory)]
    command += ["--uid", str(owner.uid), "--gid", str(owner.gid), "--groups", ",".join(map(str, owner.groups))]
    command += ["--cwd", owner.cwd, *(["--input"] if plan.input else [])]
    command += [*([] if plan.stream is None else ["--stream"]), *program]
    try:
        done = subprocess.run(
            command,
            env=outside,
            stdin=subprocess.DEVNULL if plan.stream is None else plan.stream,
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
    except OSError as error:
        raise _not_started(plan, os.strerror(error.errno or 0)) from None
    if done.returncode != 0:
        raise _not_started(plan, done.stdout.removeprefix("failed ").strip() or done.stderr.strip())


def _not_started(plan: LaunchPlan, why: str) -> Failed:
    too_long = why.endswith(os.strerror(errno.E2BIG))  # the kernel's limit, which depends on the machine
    next = "pass fewer or shorter arguments and variables" if too_long else "wherry doctor"
    return Failed(Code.JOB_FAILED, f"cannot start {plan.argv[0]}", why, next)
