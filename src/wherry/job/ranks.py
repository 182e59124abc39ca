"""The ranks of jobs in a virtual machine: its agent runs one short program as the node's user."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict

from wherry.job.agent_client import AgentEndpoint
from wherry.model.owner import Owner
from wherry.node.ranks import FILES, Times, identify, times

_ASK = "exec grep -sHz '' " + " ".join(f"/proc/[0-9]*/{name}" for name in FILES)
"""Prints every record of these files, prefixed by the file name and a colon."""
_RECORD = re.compile(rb"/proc/(\d{1,9})/(\w+):(.*)", re.DOTALL)
Process = tuple[str, int]
"""The place of a PID (`@` and a host, or the node that is a virtual machine), and the PID."""


def inside(node: str, endpoint: AgentEndpoint, owner: Owner, seconds: float) -> dict[Process, Times]:
    """The ranks in a virtual machine, from its agent. AgentError when it does not answer within `seconds`."""
    ended = endpoint.run(["/bin/sh", "-c", _ASK], owner, {"PATH": "/usr/bin:/bin"}, seconds)
    return read(node, ended.stdout)


def read(node: str, text: bytes) -> dict[Process, Times]:
    """The ranks in the agent's output; processes with incomplete data are omitted."""
    told: defaultdict[int, defaultdict[str, bytes]] = defaultdict(lambda: defaultdict(bytes))
    for record in text.split(b"\0"):
        if match := _RECORD.match(record.lstrip(b"\n")):
            told[int(match[1])][match[2].decode()] += match[3] + b"\0"
    found = {}
    for pid, files in told.items():
        rank_id = identify(files["environ"])
        stat, sched = (files[name].decode(errors="replace").strip("\0\n") for name in FILES[1:])
        with contextlib.suppress(ValueError, IndexError):  # cut off, or it ended meanwhile
            if rank_id:
                found[node, pid] = times(rank_id, node, stat, sched)
    return found
