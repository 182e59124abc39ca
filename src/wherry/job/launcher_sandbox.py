"""The sandbox in which the launcher of an account's job runs: a container made as the account's nodes are, which it
shares with nobody, in the network namespace of its cluster's head.

An account may choose the launcher's words and variables, and so the programs that it runs. Invariant: they see no more
of this machine than its nodes do, reach no network but its cluster's, and have limits; nothing of them is left when the
job has ended, or its holder.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from wherry.base.bytes_text import to_bytes
from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance, native_program
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.host_facts import runtime, runtime_problem
from wherry.job.launcher_command import LaunchPlan
from wherry.model.accounts import is_account
from wherry.model.owner import Owner
from wherry.node.container import runtime_config
from wherry.node.container.mounts import Layout

_CPUS, _MEMORY = 1.0, 1 << 30
_HOSTNAME = "head"
_HOSTS = f"127.0.0.1 localhost {_HOSTNAME}\n"
_INSIDE = "run/wherry"
"""Directory of the files of `wherry-confined`, in the sandbox and in the private files of its layout."""


def require_possible(owner: Owner) -> None:
    """Refused when the machine can make no sandbox for a launcher of this user, who needs one."""
    if is_account(owner.uid) and (problem := runtime_problem()):
        what = "the launcher of an account's job cannot be confined"
        raise Refused(Code.UNSUPPORTED, what, problem, "ask the administrator of the machine for runc")


def make(directory: Path, netns: str, plan: LaunchPlan) -> list[str]:
    """Makes the sandbox of the job with this directory, for an account; the words by which `wherry-launch` starts the
    plan's program in it. Failed when the machine cannot make or limit it."""
    owner, group, layout = plan.owner, _group(directory), _layout(directory, plan.owner)
    group.create()
    group.limit(_CPUS, _MEMORY)
    layout.make(_MEMORY, netns)
    layout.fill(_HOSTS)
    private, bundle = layout.private / _INSIDE, layout.directory / "bundle"
    private.mkdir()
    bundle.mkdir()
    shutil.copy(native_program("wherry-confined"), private / "first")
    (private / "first").chmod(0o755)
    variables = plan.env | {"TMPDIR": "/tmp"}  # noqa: S108 - of the sandbox, whose files count as its memory
    _write_strings(private / "environment", (f"{name}={value}" for name, value in variables.items()), owner)
    _write_strings(private / "arguments", plan.argv, owner)
    args = [f"/{_INSIDE}/{name}" for name in ("first", "environment", "arguments")]
    process = runtime_config.Process(args, owner.uid, owner.gid, owner.groups, owner.cwd)
    config = runtime_config.config(layout, process, _HOSTNAME, group.name, netns)
    (bundle / "config.json").write_text(json.dumps(config))
    states, first = _states(directory), str(layout.directory / "first")
    states.mkdir(parents=True, exist_ok=True, mode=0o700)
    words = ["run", "--detach", "--preserve-fds", "1", "--pid-file", first, "--bundle", str(bundle), directory.name]
    log = ["--log", str(layout.directory / "runtime.log")]
    return ["--sandbox", first, "--", runtime(), "--root", str(states), *log, *words]


def end(directory: Path, owner: Owner) -> None:
    """Ends the processes that are left in it, and removes it. Idempotent. Failed when something stays."""
    if is_account(owner.uid):
        _group(directory).remove()
        shutil.rmtree(_states(directory) / directory.name, ignore_errors=True)
        _layout(directory, owner).remove()


def _write_strings(path: Path, strings: Iterable[str], owner: Owner) -> None:
    """Each ends with NUL, as text of JSON would be no bytes. They hold the job's token."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with open(fd, "wb") as file:
        os.fchown(fd, owner.uid, owner.gid)
        for text in strings:
            file.write(to_bytes(text) + b"\0")


def _instance(directory: Path) -> Instance:
    """By the directory of the job, STATE/INSTANCE/jobs/JOB."""
    return Instance(directory.parent.parent.name)


def _group(directory: Path) -> Cgroup:
    return Cgroup(f"{_instance(directory).prefix}/.launcher-{directory.name}")


def _states(directory: Path) -> Path:
    """Where the OCI runtime keeps its own files of containers."""
    return _instance(directory).run / "launchers" / ".runtime"


def _layout(directory: Path, owner: Owner) -> Layout:
    """The job's own files are shown, and not writable: the launcher's files are limited as its memory is."""
    found = Layout(_instance(directory).run / "launchers" / directory.name, owner)
    return replace(found, shown=(os.path.realpath(directory / "own"),))
