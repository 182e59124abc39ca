"""`wherry run`, `wherry logs`, `wherry job`."""

from __future__ import annotations

import os
import stat
import sys
import threading
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.interrupts import signals_as_interrupt
from wherry.cli.names import ClusterName, JobId, NodeName
from wherry.cli.options import checked
from wherry.cli.output import Output, age, emit, say, seconds_of, table
from wherry.client import Client, Reader, Row, existing

if TYPE_CHECKING:
    from wherry.client.client import Chunk
    from wherry.model.records import Job

app = App(name="job", help="Jobs: MPI programs run on clusters.")

_INTERRUPTED = 130
_INPUT = 64 * 2**10
"""Bytes of standard input that are sent at once."""


def run(
    name: ClusterName,
    program: str,
    /,
    *args: Annotated[str, Parameter(allow_leading_hyphen=True)],
    ranks: Annotated[int, Parameter(name=["--ranks", "-n"])],
    mpi: str | None = None,
    expect: str | None = None,
    detach: bool = False,
    output: Output = "text",
) -> int:
    """Run an MPI program on a cluster: wherry run NAME -n 4 -- PROGRAM ARGS.

    The command has the program's output and exit code; Ctrl-C, SIGTERM and SIGHUP end the job. Rank 0 reads the
    command's standard input if that is a file or a pipe, and nothing if it is a terminal or with --detach.

    Parameters
    ----------
    name
        The cluster.
    program
        The program, after `--`.
    args
        Its arguments.
    ranks
        Number of ranks; they fill the nodes in order.
    mpi
        openmpi, mpich, or the path of a launcher; default: the MPI that the program is linked against.
    expect
        Expected run time, for instance 2h: balancing weighs the cost of moves against it.
    detach
        Do not wait: print the job. `wherry logs` shows its output.
    """
    if ranks < 1:
        raise Refused(
            Code.USAGE, f"-n {ranks}: a job has at least one rank", "", f"wherry run {name} -n 1 -- {program}"
        )
    expected = None if expect is None else seconds_of("--expect", expect)
    checked("--expect", "balance:Remaining", expected, "wherry run", expect or "")
    checked("NAME", "spec.base:ShortText", name, "wherry run")
    with nullcontext() if detach else signals_as_interrupt():
        return _run(name, [program, *args], ranks, mpi, expected, detach, output)


def _run(
    name: str, argv: list[str], ranks: int, mpi: str | None, expected: float | None, detach: bool, output: Output
) -> int:
    feeds = not detach and _has_input()
    with existing(f"cluster {name!r}") as client:
        job = client.run(name, argv, ranks, mpi, progress=_say_to_terminal, input=feeds, expected=expected)
        kept, seen = _empty_streams(), 0
        try:
            if client.interrupted:  # while the job was started, and too late for that to be cancelled
                raise KeyboardInterrupt
            if feeds:
                threading.Thread(target=_send_input, args=(job.id,), daemon=True).start()
            if detach:
                emit(output, "job", job, lambda: print(job.id))
                return 0
            for chunk in client.output(job.id):
                seen += 1
                _write(chunk, kept, output)
            job = client.job(job.id)
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal is gone
                say(f"ending job {job.id}")
            client.cancel_job(job.id)
            with suppress(OSError):
                for chunk in list(client.output(job.id, follow=False))[seen:]:
                    _write(chunk, kept, output)
            return _INTERRUPTED
        except Refused as error:
            if error.code is not Code.TAKEN_DOWN:
                raise
            raise Failed(error.code, f"job {job.id} was ended", error.why or error.what, "wherry up FILE") from None
    if output == "json":
        _emit_streams(job, kept)
    return _exit_code(job)


def logs(
    name: ClusterName | None = None,
    /,
    *,
    job: JobId | None = None,
    node: NodeName | None = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"])] = False,
    output: Output = "text",
) -> None:
    """Show the output of a cluster's newest job, or of --job; or the console of a node.

    Parameters
    ----------
    name
        The cluster.
    job
        The job.
    node
        Show the console of this virtual machine instead.
    follow
        Show new output as it comes, until the job ends.
    """
    if (name is None) == (node is None):
        what = "name a cluster, or a node with --node" if name is None else "a cluster and --node exclude each other"
        raise Refused(Code.USAGE, what, "", "wherry logs NAME, or: wherry logs --node NODE")
    with existing(f"node {node!r}" if node else f"cluster {name!r}") as client:
        if node is not None:
            text = client.console(node)
            emit(output, "console", {"node": node, "text": text}, lambda: print(text, end=""))
            return
        jobs = [record for record in client.jobs(name) if job in (None, record.id)]
        if not jobs:
            what = f"no job {job!r} ran on {name!r}" if job else f"no job ran on {name!r}"
            raise Refused(Code.NOT_FOUND, what, "", "wherry job list")
        kept = _empty_streams()
        for chunk in client.output(jobs[-1].id, follow):
            _write(chunk, kept, output)
        if output == "json":
            _emit_streams(client.job(jobs[-1].id), kept)


@app.command(name="list")
def list_(cluster: ClusterName | None = None, /, *, output: Output = "text") -> None:
    """List the jobs, oldest first.

    Parameters
    ----------
    cluster
        Only this cluster's.
    """
    with Reader() as reader:
        jobs = reader.jobs(cluster)
    rows = [(j.id, j.cluster, j.state, j.ranks, j.mpi, _code(j), age(j.created), " ".join(j.argv)[:60]) for j in jobs]
    header = ("JOB", "CLUSTER", "STATE", "RANKS", "MPI", "EXIT", "AGE", "PROGRAM")
    emit(output, "jobs", {"jobs": jobs}, lambda: table(header, rows, "No job ran yet."))


@app.command
def show(job: JobId, /, *, output: Output = "text") -> None:
    """Show a job.

    Parameters
    ----------
    job
        The job.
    """
    with Reader() as reader:
        record = reader.get(f"/v1/jobs/{job}", f"job {job!r}")
    rows = [(field, _shown(value)) for field, value in record.items()]
    emit(output, "job", record, lambda: table(("FIELD", "VALUE"), rows, ""))


app.command("wherry.cli.balance:profile", name="profile")


@app.command
def cancel(job: JobId, /, *, output: Output = "text") -> None:
    """End a job, as Ctrl-C in `wherry run` does.

    Parameters
    ----------
    job
        The job.
    """
    with existing(f"job {job!r}") as client:
        record = client.cancel_job(job, say)
    emit(output, "job", record, lambda: print(f"{record.id} is {record.state}."))


def _has_input() -> bool:
    """True when standard input is a file or a pipe. A terminal is not read: it would stop a background job."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def _send_input(id: str) -> None:
    """Sends standard input to the job until either ends."""
    try:
        with Client() as client:
            client.feed(id, _read_input)
    except WherryError as error:
        if error.code is not Code.WRONG_STATE:  # the job has ended
            say(f"job {id} gets no more input: {error}")


def _read_input() -> bytes:
    """A piece of standard input. An error ends the input: without an end the job would wait for it forever."""
    try:
        return os.read(0, _INPUT)
    except OSError as error:
        say(f"standard input cannot be read on: {error.strerror}")
        return b""


def _empty_streams() -> dict[str, bytearray]:
    return {"stdout": bytearray(), "stderr": bytearray()}


def _emit_streams(job: Job, kept: dict[str, bytearray]) -> None:
    streams = {stream: bytes(data).decode(errors="replace") for stream, data in kept.items()}
    emit("json", "run", {"job": job, **streams}, lambda: None)


def _write(chunk: Chunk, kept: dict[str, bytearray], output: str) -> None:
    stream, _, data = chunk
    if output == "json":
        kept[stream] += data
        return
    target = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    target.write(data)
    target.flush()


def _say_to_terminal(text: str) -> None:
    """Prints progress of the start to a terminal only: a redirected standard error is the program's alone."""
    if sys.stderr.isatty():
        say(text)


def _exit_code(job: Job) -> int:
    if job.exit_code is None:
        why = job.reason or f"it is {job.state}"
        raise Failed(Code.JOB_FAILED, f"job {job.id} did not end by itself", why, f"wherry job show {job.id}")
    if job.exit_code == Code.TAKEN_DOWN.exit_code and str(job.state) == "cancelled":
        raise Failed(Code.TAKEN_DOWN, f"job {job.id} was ended", job.reason, "wherry up FILE")
    if str(job.state) == "failed":
        say(f"error {Code.JOB_FAILED}: job {job.id} failed\n  why: {job.reason}\n  next: {job.next}")
    elif job.exit_code and job.reason:
        say(job.reason)
    return job.exit_code


def _code(job: Row) -> str:
    return "-" if job.exit_code is None else str(job.exit_code)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items() if part is not None)
    return " ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)
