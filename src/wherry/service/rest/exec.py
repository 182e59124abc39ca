"""Routes of programs on single nodes, which are jobs, and of the removal of ended jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from wherry.model.inherited import Inherited
from wherry.model.job_request import ExecRequest, Terminal, Words
from wherry.model.records import Job
from wherry.service.exec_commands import ExecCommands
from wherry.service.rest.dependencies import CommandsDep, ContextDep, OwnedBody, PeerDep, accepted

router = APIRouter(tags=["jobs"])


class ExecBody(OwnedBody):
    """A program to run on a node: its command line and environment. It runs in the owner's directory; unless that was
    `asked` for, in `/` where the node does not see it. With `input` or a `terminal` it reads the input
    of its job; that of a terminal is in frames: D or W, a length of 16 bits, and bytes or rows and columns of 16 bits.
    """

    argv: Words
    env: dict[str, str] = {}
    inherited: Inherited = Inherited()
    asked: bool = False
    input: bool = False
    terminal: Terminal | None = None


def _exec_commands(context: ContextDep, peer: PeerDep) -> ExecCommands:
    return ExecCommands(context, peer)


ExecCommandsDep = Annotated[ExecCommands, Depends(_exec_commands)]


@router.post("/nodes/{name}/exec", status_code=202)
def post_exec(name: str, body: ExecBody, commands: ExecCommandsDep, all: CommandsDep) -> JSONResponse:
    """Starts a program on a node; the operation's result is its job."""
    owner = all.program_owner(body.owner, all.cluster_of(name))
    request = ExecRequest(**body.model_dump(exclude={"owner"}), node=name, owner=owner)
    return accepted(commands.start(request))


@router.delete("/jobs/{id}/output")
def forget_job(id: str, commands: ExecCommandsDep) -> Job:
    """Removes a job that has ended, with its output."""
    return commands.forget(id)
