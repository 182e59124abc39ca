"""Routes of jobs and their output."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import Base64Bytes, Field

from wherry.model.balance import Remaining
from wherry.model.inherited import Inherited
from wherry.model.job_request import JobRequest, Layout, Program, RankCount, SignalName, Words
from wherry.model.records import Job
from wherry.model.spec.base import ShortText
from wherry.service.rest.dependencies import (
    Body,
    CommandsDep,
    ContextDep,
    Offset,
    OwnedBody,
    WaitSeconds,
    accepted,
)
from wherry.service.rest.long_poll import long_poll
from wherry.service.rest.paging import ListsDep, Newest, PagingDep

router = APIRouter(tags=["jobs"])

_OUTPUT = 2**20
"""Bytes of output in one answer."""


class JobBody(OwnedBody):
    """A program to run: its command line, number of ranks and environment, and optionally which MPI.

    Bytes of words and variables that are not UTF-8 are U+EF80 to U+EFFF, for 0x80 to 0xFF.

    With `input` rank 0 reads the job's input, until its end. `expected` is the expected run time in
    seconds: balancing weighs the cost of a move against the remaining time. `timeout` ends the job after so many.
    When it is `measured`, a profile of the program is kept, and ranks without a layout are placed by the last one.
    Several `programs` have the `ranks` together; `argv` is then only shown. `launcher_args` are passed to mpirun.
    The ranks count their calls of MPI, for /v1/jobs/{id}/mpi-profile; a `plain` job has nothing of Wherry inside MPI.
    With `site_collectives` their collectives cross a link between sites once. When it is `deterministic`, reductions
    of floating point have the same bits wherever its ranks are. With `place_spawned` processes that they spawn are
    started on the nodes of the least loaded hosts. With `host_memory` ranks of containers at one host pass messages of
    64 (MPICH: 32) to 256 KiB by its memory.
    """

    cluster: ShortText
    argv: Words
    ranks: RankCount
    env: dict[str, str] = {}
    inherited: Inherited = Inherited()
    mpi: Annotated[str, Field(max_length=4096)] | None = None
    input: bool = False
    expected: Remaining | None = None
    programs: Annotated[tuple[Program, ...], Field(max_length=64)] = ()
    layout: Layout = Layout()
    timeout: Remaining | None = None
    launcher_args: Annotated[tuple[str, ...], Field(max_length=256)] = ()
    measured: bool = False
    plain: bool = False
    site_collectives: bool = False
    deterministic: bool = False
    place_spawned: bool = False
    host_memory: bool = False


class InputBody(Body):
    """A piece of rank 0's input: bytes in base64, their offset in the whole input, and whether the input ends there."""

    offset: Annotated[int, Field(ge=0, le=2**53)]
    data: Annotated[Base64Bytes, Field(max_length=2**20)] = b""
    end: bool = False


class SignalBody(Body):
    """A signal, by its name without SIG."""

    signal: SignalName


@router.get("/jobs")
def list_jobs(lists: ListsDep, paging: PagingDep, cluster: str | None = None, newest: Newest = False) -> list[Job]:
    """Oldest first."""
    return paging.answer(lists.jobs(paging.wanted(int, newest=newest), cluster))


@router.post("/jobs", status_code=202)
def post_job(body: JobBody, commands: CommandsDep) -> JSONResponse:
    """Starts a job once all nodes answer; the operation's result is the job."""
    owner = commands.program_owner(body.owner, body.cluster)
    request = JobRequest(**body.model_dump(exclude={"owner"}), owner=owner)
    return accepted(commands.run(request))


@router.get("/jobs/{id}")
async def show_job(id: str, context: ContextDep, commands: CommandsDep, wait: WaitSeconds = 0.0) -> Job:
    """One job; with `wait` as soon as it has ended, or after so many seconds."""

    def ended() -> Job | None:
        job = commands.job(id)
        return None if job.state.under_way else job

    return await long_poll(context, ended, wait) or commands.job(id)


@router.get("/jobs/{id}/output")
async def job_output(
    id: str,
    context: ContextDep,
    commands: CommandsDep,
    offset: Offset = 0,
    wait: WaitSeconds = 0.0,
    gather: WaitSeconds = 0.0,
) -> dict[str, Any]:
    """Output from `offset` on, as soon as there is some or the job has ended; `data` is base64, `next` the next offset.

    `end` is true when no output will follow. Output is looked for when `gather` seconds are over or the job has ended:
    reading each line of a program that prints all the time would take the ranks' processors.
    """

    def ended() -> bool:
        return not commands.job(id).state.under_way

    def read() -> dict[str, Any] | None:
        found = commands.output(id, offset, _OUTPUT)
        return found if found["chunks"] or found["end"] else None

    if gather:
        await long_poll(context, ended, gather)
    directory = context.job_directory(id) if wait else None
    found = await long_poll(context, read, wait, directory) or commands.output(id, offset, _OUTPUT)
    chunks = [
        {"stream": stream, "time": time, "data": base64.b64encode(data).decode()}
        for stream, time, data in found["chunks"]
    ]
    return {**found, "chunks": chunks, "job": found["job"].model_dump(mode="json")}


@router.put("/jobs/{id}/input")
async def job_input(
    id: str, body: InputBody, context: ContextDep, commands: CommandsDep, wait: WaitSeconds = 0.0
) -> dict[str, Any]:
    """Writes a piece of rank 0's input as soon as its pipe takes some of it; `next` is the next offset expected.

    `ended` is true once the end was written. Idempotent: bytes before `next` are ignored.
    """

    def write() -> tuple[int, bool] | None:
        taken = commands.input(id, body.offset, body.data, body.end)
        return taken if taken != (body.offset, False) else None

    directory = context.job_directory(id) if wait else None
    fifo = directory / "input" if directory else None
    next, ended = await long_poll(context, write, wait, directory, fifo) or (body.offset, False)
    return {"next": next, "ended": ended}


@router.delete("/jobs/{id}", status_code=202)
def cancel_job(
    id: str, commands: CommandsDep, grace: Annotated[float, Query(ge=0, le=86400)] | None = None
) -> JSONResponse:
    """Ends a job; a job that has ended stays as it is. With a `grace` its ranks get SIGTERM, and have so many
    seconds."""
    return accepted(commands.cancel_job(id, grace))


@router.post("/jobs/{id}/signal", status_code=202)
def signal_job(id: str, body: SignalBody, commands: CommandsDep) -> JSONResponse:
    """Sends a signal to the ranks of a running job, each with its process group."""
    return accepted(commands.signal_job(id, body.signal))
