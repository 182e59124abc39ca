"""Kills the leftover processes of a job: on its nodes, where it removes their messages, and beside its launcher.

They are identified by a variable in their environment (`node.ranks.MARK` on nodes, where the agent looks itself,
without another process; WHERRY_JOB beside the launcher). Invariant: only processes of the job's own user are killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wherry.job import launcher_sandbox
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.model import host_memory
from wherry.model.owner import Owner

_PARALLEL = 16
_SEARCHES = 20  # a process may have forked while it was killed
_PAUSE, _MAX_PAUSE = 0.02, 0.5  # seconds between two searches: killed processes take a while to be gone

_REMOVE = f'rm -rf "{host_memory.INSIDE}/$1" "{host_memory.KEPT}/$1".*'


def end_leftovers_on_nodes(
    id: str, owner: Owner, nodes: Iterable[tuple[str, AgentEndpoint]], seconds: float
) -> dict[str, str]:
    """Kills the leftovers of job `id` on the nodes. Returns the nodes where that failed, with the reason."""

    def sweep(node: tuple[str, AgentEndpoint]) -> tuple[str, str]:
        end = time.monotonic() + seconds
        try:
            for search in range(_SEARCHES):
                if node[1].kill_job(id, end - time.monotonic()) == 0:
                    break
                time.sleep(min(search * _PAUSE, _MAX_PAUSE))
            else:
                return node[0], "new processes of the job keep appearing"
            remove, remover = ["/bin/sh", "-c", _REMOVE, "remove", id], owner.model_copy(update={"cwd": "/"})
            done = node[1].run(remove, remover, {"PATH": "/usr/bin:/bin"}, end - time.monotonic())
            said = done.stderr.decode(errors="replace").strip()
            return node[0], "" if done.code == 0 else f"its messages were not removed: {said[:200]}"
        except AgentError as error:
            return node[0], str(error)

    with ThreadPoolExecutor(_PARALLEL) as pool:
        return {name: reason for name, reason in pool.map(sweep, nodes) if reason}


def end_leftovers_at_head(job_file: Path, owner: Owner) -> None:
    """Kills the launcher's leftover agents on this machine: the owner's processes with this job file; of an account all
    that the launcher started here."""
    _signal(signal.SIGKILL, job_file, owner)
    launcher_sandbox.end(job_file.parent.parent, owner)


def has_agents(job_file: Path, owner: Owner, address: str) -> bool:
    """True when the launcher has an agent for the node at this address: the job has ranks there."""
    return _signal(0, job_file, owner, address.encode())


def end_agents(job_file: Path, owner: Owner, address: str) -> None:
    """Kills the launcher's agents for a lost node, so that it need not wait until their connections time out."""
    _signal(signal.SIGKILL, job_file, owner, address.encode())


def _signal(number: int, job_file: Path, owner: Owner, word: bytes | None = None) -> bool:
    """Signals the owner's processes with this job file (and the argument `word`). True when there was one."""
    wanted, found = b"WHERRY_JOB=" + os.fsencode(job_file), False
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fd = os.pidfd_open(int(entry.name))
        except OSError:
            continue
        try:
            ours = entry.stat().st_uid == owner.uid and wanted in _strings(entry.path, "environ")
            if ours and (word is None or word in _strings(entry.path, "cmdline")[1:]):
                signal.pidfd_send_signal(fd, number)
                found = True
        except OSError:
            continue
        finally:
            os.close(fd)
    return found


def _strings(process: str, file: str) -> list[bytes]:
    return Path(process, file).read_bytes().split(b"\0")
