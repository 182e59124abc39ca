"""User data: a script that runs once on each node of a reservation, when its cluster is made.

It is an operation of its own (`user data`), which waits for that of the cluster and starts the script as a program of
the account (`wherry exec`), so its output is that of a job. A script that the daemon's end interrupts is not repeated:
its operation has failed.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from typing import Any

from wherry.base.errors import Code, Failed, WherryError
from wherry.model.job_request import ExecRequest
from wherry.model.records import Operation, OperationState
from wherry.service.ec2.asked import Asked
from wherry.service.ec2.errors import Ec2Error, unsupported
from wherry.service.exec_commands import ExecCommands
from wherry.service.task import Task

_MAX_BYTES = 16384
"""Bytes, as EC2 has it."""
_SHELL = re.compile(r"#! ?(/bin/(?:ba)?sh)[ \t]*\r?\n")
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_LOOK_SECONDS = 0.5
log = logging.getLogger("wherry.ec2")


def script_of(asked: Asked) -> tuple[str, ...]:
    """The command line that runs a request's user data; empty without. InvalidUserData.Malformed."""
    given = asked.words.get("UserData", "")
    try:
        text = base64.b64decode(given, validate=True).decode() if given else ""
    except (binascii.Error, ValueError):
        raise Ec2Error("InvalidUserData.Malformed", "User data must be a text, in base64") from None
    if not text:
        return ()
    shell = _SHELL.match(text)
    if len(text.encode()) > _MAX_BYTES or "\0" in text:
        raise Ec2Error("InvalidUserData.Malformed", f"User data is a text of at most {_MAX_BYTES} bytes")
    if shell is None:
        raise unsupported("User data that is no script of a shell", "its first line must be #!/bin/sh or #!/bin/bash")
    return shell[1], "-c", text


def run_when_made(asked: Asked, cluster: str, made_by: str, argv: tuple[str, ...]) -> None:
    """Begins the operation. A failure to begin is an event: the cluster is under way already."""
    context, uid = asked.context, asked.caller.uid

    def body(task: Task) -> dict[str, Any]:
        task.progress(f"waiting until {cluster} is made")
        _ended(asked, task, made_by)
        execs, owner = ExecCommands(context, asked.caller), asked.caller.owner_of_cluster(None, uid)
        jobs = []
        for node in context.store.nodes(cluster):
            task.progress(f"starting the script on {node.name}")
            started = execs.start(ExecRequest(node=node.name, argv=argv, owner=owner, env=_ENVIRONMENT))
            jobs.append((_ended(asked, task, started.id).result or {}).get("job"))
        return {"cluster": cluster, "jobs": jobs}

    try:
        context.operations.start("user data", cluster, body, uid=uid, owner=uid, apart=True)
    except WherryError as error:
        log.warning("user data of %s: %s", cluster, error)
        context.store.add_event("ec2.user-data", cluster, f"the user data of {cluster} does not run: {error}", uid)


def _ended(asked: Asked, task: Task, id: str) -> Operation:
    """An operation that has ended well. FAILED when it has not, CANCELLED."""
    while (found := asked.context.operations.wait(id, _LOOK_SECONDS)).state is OperationState.RUNNING:
        task.check()
    if found.state is not OperationState.DONE:
        why = f"{found.kind} {found.target}: {(found.error or {}).get('what', found.state)}"
        raise Failed(Code.FAILED, "the user data did not run everywhere", why, f"wherry op show {id}")
    return found
