"""`wherry logs`, `wherry job`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from wherry.base.errors import Code, Refused
from wherry.cli.job_output import emit_streams, empty_streams, write_chunk
from wherry.cli.names import ClusterName, JobId, NodeName
from wherry.cli.output import Output, age, emit, say, table
from wherry.client import Reader, Row, existing

app = App(name="job", help="Jobs: MPI programs run on clusters.")


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
        jobs = [one for one in client.jobs(name) if job == one.id or job is None and one.kind == "mpi"]
        if not jobs:
            what = f"no job {job!r} ran on {name!r}" if job else f"no job ran on {name!r}"
            raise Refused(Code.NOT_FOUND, what, "", "wherry job list")
        kept = empty_streams()
        for chunk in client.output(jobs[-1].id, follow):
            write_chunk(chunk, kept, output)
        if output == "json":
            emit_streams(client.job(jobs[-1].id), kept)


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
app.command("wherry.cli.check:check", name="check")


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


def _code(job: Row) -> str:
    return "-" if job.exit_code is None else str(job.exit_code)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items() if part not in (None, []))
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        return "; ".join(map(_shown, value))
    return " ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)
