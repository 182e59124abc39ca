"""Routes of jobs and their output."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import Base64Bytes, Field

from wherry.model.job_request import JobRequest
from wherry.model.objects import Job
from wherry.service.rest.common import Body, Number, OwnedBody, TheActs, TheCell, ThePeer, Wait, Word, accepted, until

router = APIRouter(tags=["jobs"])

_OUTPUT = 2**20
"""Bytes of output in one answer."""


class JobBody(OwnedBody):
    """A program to run: its words, how many ranks, the environment of whoever asks, and optionally which MPI.

    With `input` rank 0 reads what is put to the job's input, until the end of that. `expected` is how many seconds the
    job is thought to take: balancing weighs what is left of them.
    """

    cluster: Word
    argv: Annotated[list[str], Field(min_length=1, max_length=65536)]
    ranks: Annotated[int, Field(ge=1, le=65536)]
    env: dict[str, str] = {}
    mpi: Annotated[str, Field(max_length=4096)] | None = None
    input: bool = False
    expected: Annotated[float, Field(gt=0)] | None = None


class InputBody(Body):
    """What rank 0 reads: bytes in base64, where they begin in all of its input, and whether they are its last."""

    offset: Annotated[int, Field(ge=0, le=2**53)]
    data: Annotated[Base64Bytes, Field(max_length=2**20)] = b""
    end: bool = False


@router.get("/jobs")
def list_jobs(acts: TheActs, cluster: str | None = None) -> list[Job]:
    """Oldest first."""
    return acts.jobs(cluster)


@router.post("/jobs", status_code=202)
def post_job(body: JobBody, acts: TheActs, peer: ThePeer) -> JSONResponse:
    """Starts a job once every node answers; the operation's result is the job."""
    order = JobRequest(**body.model_dump(exclude={"owner"}), owner=peer.owner(body.owner))
    return accepted(acts.run(order))


@router.get("/jobs/{id}")
def show_job(id: str, acts: TheActs) -> Job:
    """One job."""
    return acts.job(id)


@router.get("/jobs/{id}/output")
async def job_output(id: str, context: TheCell, acts: TheActs, offset: Number = 0, wait: Wait = 0.0) -> dict[str, Any]:
    """Output from `offset` on, as soon as there is some or the job has ended; `data` is base64, `next` the next offset.

    `end` is true when nothing will ever follow.
    """

    def news() -> dict[str, Any] | None:
        found = acts.output(id, offset, _OUTPUT)
        return found if found["chunks"] or found["end"] else None

    directory = context.job_directory(id) if wait else None
    found = await until(context, news, wait, directory) or acts.output(id, offset, _OUTPUT)
    chunks = [
        {"stream": stream, "time": time, "data": base64.b64encode(data).decode()}
        for stream, time, data in found["chunks"]
    ]
    return {**found, "chunks": chunks, "job": found["job"].model_dump(mode="json")}


@router.put("/jobs/{id}/input")
async def job_input(id: str, body: InputBody, context: TheCell, acts: TheActs, wait: Wait = 0.0) -> dict[str, Any]:
    """Gives rank 0 some of its input, as soon as it takes any of it: `next` is the offset that it waits for now.

    `ended` is true when it was told the end. The same again does no harm.
    """

    def news() -> tuple[int, bool] | None:
        taken = acts.input(id, body.offset, body.data, body.end)
        return taken if taken != (body.offset, False) else None

    directory = context.job_directory(id) if wait else None
    fifo = directory / "input" if directory else None
    next, ended = await until(context, news, wait, directory, fifo) or (body.offset, False)
    return {"next": next, "ended": ended}


@router.delete("/jobs/{id}", status_code=202)
def cancel_job(id: str, acts: TheActs) -> JSONResponse:
    """Ends a job."""
    return accepted(acts.cancel_job(id))
