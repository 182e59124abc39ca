"""Signals to the ranks of a job, on their nodes.

As launchers do, a signal goes to the process group of each rank: the first process with a rank's variable, and the
processes that it started beside it. Of a program on a node (`exec`) to that program and its group. Invariant: the
search and the signals are the job's user's, so only processes of that user get any.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wherry.base.errors import Refused
from wherry.job import ending, holder_files
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.model.owner import Owner
from wherry.model.records import Job
from wherry.node.ranks import MARK

_PARALLEL = 16
_SEND = f"""
signal=$2 ranks=
for process in /proc/[0-9]*; do
  grep -qzFx "{MARK}=$1" "$process/environ" 2>/dev/null || continue
  if [ "$3" = mpi ]; then
    grep -qzE '^(OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)=' "$process/environ" 2>/dev/null || continue
  else
    read -r name <"$process/comm" 2>/dev/null
    [ "$name" = wherry-terminal ] && continue
  fi
  ranks="$ranks ${{process#/proc/}}"
done
sent=0
for rank in $ranks; do
  stat=$(cat "/proc/$rank/stat" 2>/dev/null) || continue
  set -- ${{stat##*) }}
  case " $ranks " in *" $2 "*) continue;; esac
  to=$rank
  [ "$3" = "$rank" ] && to=-$rank
  kill -s "$signal" -- "$to" 2>/dev/null && sent=$((sent + 1))
done
echo $sent
"""


def terminate(directory: Path, grace: float, send: Callable[[signal.Signals, float], tuple[int, object]]) -> None:
    """SIGTERM to the ranks of the job with this directory, by `send`, and the time that they have to end by
    themselves: all of the `grace`, or until the job has ended."""
    end, mark = time.monotonic() + grace, directory / ending.SIGNALLED
    mark.touch()
    try:
        sent, _ = send(signal.SIGTERM, max(grace, 1.0))
    except Refused:  # it has ended, or does not run yet
        sent = 0
    if sent:
        holder_files.await_end(directory, end - time.monotonic())
    else:
        mark.unlink(missing_ok=True)


def send(
    job: Job, number: signal.Signals, nodes: Iterable[tuple[str, AgentEndpoint]], seconds: float
) -> tuple[int, dict[str, str]]:
    """Sends a signal to the job's ranks on these nodes, and waits for each node at most so many seconds. How many got
    it, and the nodes where that failed, with the reason."""
    owner = Owner(uid=job.uid, gid=job.gid, home="/", cwd="/")
    words = ["/bin/sh", "-c", _SEND, "send", job.id, number.name.removeprefix("SIG"), job.kind]

    def ask(node: tuple[str, AgentEndpoint]) -> tuple[str, int, str]:
        try:
            ended = node[1].run(words, owner, {"PATH": "/usr/bin:/bin"}, seconds)
            return node[0], int(ended.stdout), ""
        except ValueError:
            return node[0], 0, ended.stderr.decode(errors="replace").strip()[:200] or "it could not look for ranks"
        except AgentError as error:
            return node[0], 0, str(error)

    with ThreadPoolExecutor(_PARALLEL) as pool:
        answers = list(pool.map(ask, nodes))
    return sum(sent for _, sent, _ in answers), {name: why for name, _, why in answers if why}
