"""`wherry logs`, `wherry job`."""

from __future__ import annotations

import math
from contextlib import suppress
from signal import Signals
from typing import Annotated

from cyclopts import App, Parameter

from wherry.base.errors import Code, Refused
from wherry.cli.job_follow import GRACE, exit_code
from wherry.cli.job_output import ReaderGone, emit_streams, empty_streams, write_chunk
from wherry.cli.names import ClusterName, JobId, NodeName
from wherry.cli.options import checked
from wherry.cli.output import MOST_LISTED, Limit, Output, age, emit, emit_list, most_of, say, seconds_of, table
from wherry.cli.streams import READER_GONE
from wherry.client import Reader, Row, existing
from wherry.client.client import Taken

app = App(name="job", help="Jobs: MPI programs run on clusters.")


def logs(
    name: ClusterName | None = None,
    /,
    *,
    job: JobId | None = None,
    node: NodeName | None = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"])] = False,
    output: Output = "text",
) -> int:
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
        Show new output as it comes, until the job ends; then the command has the job's exit code.
    """
    if node is not None and (name or job) or not (name or node or job):
        what = "--node goes with nothing else" if node else "name a cluster, a job with --job, or a node with --node"
        raise Refused(Code.USAGE, what, "", "wherry logs NAME, wherry logs --job JOB or wherry logs --node NODE")
    with existing(f"node {node!r}" if node else f"job {job!r}" if job else f"cluster {name!r}") as client:
        if node is not None:
            text = client.console(node)
            emit(output, "console", {"node": node, "text": text}, lambda: print(text, end=""))
            return 0
        jobs = [one for one in client.jobs(name) if job == one.id or job is None and one.kind == "mpi"]
        if not jobs:
            where = f" on {name!r}" if name else ""
            what = f"no job {job!r} ran{where}" if job else f"no job ran{where}"
            raise Refused(Code.NOT_FOUND, what, "", "wherry job list")
        kept, taken = empty_streams(), Taken()
        try:
            for chunk in client.output(jobs[-1].id, follow, taken=taken):
                write_chunk(chunk, kept, output, taken)
        except ReaderGone:
            return READER_GONE
        if output == "json":
            emit_streams(client.job(jobs[-1].id), kept)
        return exit_code(client.job(jobs[-1].id)) if follow else 0


@app.command(name="list")
def list_(cluster: ClusterName | None = None, /, *, limit: Limit = MOST_LISTED, output: Output = "text") -> None:
    """List the newest jobs, oldest first.

    Parameters
    ----------
    cluster
        Only this cluster's.
    """
    with Reader() as reader:
        jobs, more = reader.some("/v1/jobs", most_of(limit), cluster=cluster, newest=True)
    rows = [(j.id, j.cluster, j.state, j.ranks, j.mpi, _code(j), age(j.created), " ".join(j.argv)[:60]) for j in jobs]
    header = ("JOB", "CLUSTER", "STATE", "RANKS", "MPI", "EXIT", "AGE", "PROGRAM")
    emit_list(output, "jobs", {"jobs": jobs}, more, lambda: table(header, rows, "No job ran yet."))


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
app.command("wherry.cli.check:check", name="check")


@app.command
def wait(job: JobId, /, *, timeout: str | None = None, output: Output = "text") -> int:
    """Wait until a job has ended; the command has its exit code.

    Parameters
    ----------
    job
        The job.
    timeout
        Wait no longer than this, for instance 10m.
    """
    seconds = math.inf if timeout is None else seconds_of("--timeout", timeout)
    with existing(f"job {job!r}") as client:
        record = client.wait_job(job, seconds)
    emit(output, "job", record, lambda: None)
    return exit_code(record)


@app.command(name="signal")
def signal_(job: JobId, signal: str, /, *, output: Output = "text") -> None:
    """Send a signal to the ranks of a job, each with its process group: wherry job signal JOB USR1.

    Parameters
    ----------
    job
        The job.
    signal
        Its name, with or without SIG, or its number.
    """
    name = _signal_name(signal)
    with existing(f"job {job!r}") as client:
        found = client.signal_job(job, name)
    emit(output, "signal", found, lambda: print(f"SIG{name} was sent to {found['sent']} processes of {job}."))
    for node, why in found["silent"].items():
        say(f"node {node} did not answer: {why}")


def _signal_name(typed: str) -> str:
    name = typed.upper().removeprefix("SIG")
    with suppress(ValueError):
        name = Signals(int(typed)).name.removeprefix("SIG") if typed.isdecimal() else name
    checked("SIGNAL", "job_request:SignalName", name, "wherry job signal")
    return name


@app.command
def cancel(job: JobId, /, *, grace: str | None = None, output: Output = "text") -> None:
    """End a job: its ranks get SIGTERM, and processes that still run after the grace are killed. A job that has ended
    stays as it is.

    Parameters
    ----------
    job
        The job.
    grace
        How long ranks may continue after SIGTERM, for instance 1m; default: 5s.
    """
    seconds = GRACE if grace is None else seconds_of("--grace", grace)
    with existing(f"job {job!r}") as client:
        record = client.cancel_job(job, say, grace=seconds)
    emit(output, "job", record, lambda: print(f"{record.id} is {record.state}."))


def _code(job: Row) -> str:
    return "-" if job.exit_code is None else str(job.exit_code)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items() if part not in (None, []))
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        return "; ".join(map(_shown, value))
    return " ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)
