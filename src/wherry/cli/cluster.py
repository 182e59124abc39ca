"""`wherry up`, `wherry down`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import Instance, instance
from wherry.cli.instances import noted, others
from wherry.cli.lease import until
from wherry.cli.names import ClusterName
from wherry.cli.options import checked
from wherry.cli.output import Output, age, agrees, emit, is_interactive, say, table
from wherry.client import Client, Reader, Row, daemon_process, existing

if TYPE_CHECKING:
    from wherry.model.records import Job

_TRIES = 5
"""How many daemons `down --all` stops before it gives up."""


def up(
    file: Path,
    /,
    *,
    dry_run: bool = False,
    detach: bool = False,
    project: str | None = None,
    lease: str | None = None,
    wait: bool = False,
    priority: int = 0,
    output: Output = "text",
) -> None:
    """Make, change or repair the cluster of FILE.

    The same file again changes nothing. If no fabric is up, the embedded one is made first.

    Parameters
    ----------
    file
        A cluster file (see examples/hello.yaml).
    dry_run
        Print the plan, and change nothing.
    detach
        Do not wait: print the operation.
    project
        The project to which the cluster belongs (wherry project).
    lease
        How long the cluster stays, such as 8h; none: for good. By default as in the file, else as is usual for its
        owner (wherry user me). See wherry lease.
    wait
        Wait until there is room, in the queue: wherry queue list. Ctrl-C leaves it.
    priority
        With --wait: a higher one comes first. Above 0 for root and admins alone.
    """
    from wherry.cli.files import read_cluster  # here: the models of files take as long as all of `status`

    data = read_cluster(file)
    if lease is not None:
        data["lease"] = checked("--lease", "spec.cluster:Lease", lease, "wherry up") and lease
    with Client() as client:
        if dry_run:
            plan = client.plan(data, str(file), project)
            emit(output, "plan", plan, lambda: print(plan["text"]))
            return
        operation = client.up(data, str(file), project=project, wait=wait, priority=priority)
        if detach:
            emit(output, "operation", operation, lambda: print(operation.id))
            return
        result: dict[str, Any] = client.wait(operation.id, say).result or {}
        emit(output, "cluster", result, lambda: _print_up(result))


def down(
    name: ClusterName | None = None,
    /,
    *,
    all: bool = False,
    instances: bool = False,
    yes: bool = False,
    output: Output = "text",
) -> None:
    """End the jobs of a cluster and remove it, or remove everything of this instance.

    Parameters
    ----------
    name
        The cluster.
    all
        All clusters, the fabric, the daemon, the database and all output. Needs no daemon.
    instances
        With --all: all other instances of this machine too, as studies, benchmarks and tests leave them when they are
        killed. Asks before.
    yes
        End running jobs without asking. Without a terminal nothing can be asked, and nothing is removed while jobs run.
    """
    if all == bool(name):
        what = "name a cluster, or say --all" if not name else "a name and --all exclude each other"
        raise Refused(Code.USAGE, what, "", "wherry down NAME, or: wherry down --all")
    if instances and not all:
        raise Refused(Code.USAGE, "--instances goes with --all", "", "wherry down --all --instances")
    if all:
        _down_all(output, yes, others(yes) if instances else [])
        return
    with existing(f"cluster {name!r}") as client:
        ending = agreed(f"cluster {name}", client.jobs(name), yes, f"wherry down {name} --yes")
        result: dict[str, Any] = client.wait(client.down(str(name), ending).id, say).result or {}
        emit(output, "down", result, lambda: print(f"{name} is removed ({len(result['nodes'])} nodes)."))


def _print_up(result: dict[str, Any]) -> None:
    cluster, nodes = result["cluster"], result["nodes"]
    print(f"{cluster['name']} is up: {len(nodes)} nodes in {cluster['subnet']}.")
    rows = [(node["name"], node["kind"], node["host"], node["address"]) for node in nodes]
    table(("NODE", "KIND", "HOST", "ADDRESS"), rows, "no nodes")
    if cluster["lease"]:
        left = until(cluster["lease"])
        print(f"It is removed in {left}, when its lease ends: wherry lease extend {cluster['name']} --by 4h")


def _stop_and_purge(place: Instance) -> tuple[int | None, dict[str, list[str]]]:
    """Stops the daemon and removes the instance; its process id, and the removed objects. Tried several times: a
    waiting client may just have started the next daemon."""
    daemon_process.forbid_resuming(place)
    tries, pid = _TRIES, daemon_process.stop(place)
    while True:
        tries -= 1
        try:
            return pid, daemon_process.sweep(place)
        except Refused as error:
            if error.code != Code.WRONG_STATE or not tries:
                raise
        pid = daemon_process.stop(place) or pid


def agreed(what: str, jobs: Sequence[Job | Row], yes: bool, remedy: str, act: str = "remove") -> bool:
    """Whether jobs are to be ended: by --yes, or by an answer on the terminal; False when none runs. WRONG_STATE and
    CANCELLED when they are not."""
    running = [job for job in jobs if job.state in ("starting", "running")]
    if yes or not running:
        return yes
    names = ", ".join(job.id for job in running)
    if not is_interactive():
        raise Refused(Code.WRONG_STATE, f"jobs run on {what}: {names}", "there is no terminal to ask at", remedy)
    rows = [(job.id, job.cluster, job.ranks, age(job.created), " ".join(job.argv)[:60]) for job in running]
    table(("JOB", "CLUSTER", "RANKS", "AGE", "PROGRAM"), rows, "")
    if not agrees(f"End {'this job' if len(running) == 1 else 'these jobs'} and {act} {what}?"):
        raise Refused(Code.CANCELLED, f"nothing was {act.removesuffix('e')}ed", "", remedy)
    return True


def _running(place: Instance) -> list[Row]:
    """The jobs of an instance, as far as its daemon answers: a broken instance is removed without a question."""
    try:
        return Reader(place).jobs()
    except WherryError:
        return []


def _down_all(output: str, yes: bool, others: Sequence[Instance] = ()) -> None:
    """Removes this instance and others. When one cannot be removed, the rest is."""
    removed_of, left = dict[str, dict[str, list[str]]](), list[str]()
    place = instance()
    if not others:  # else the question was about everything
        agreed(f"instance {place.name}", [] if yes else _running(place), yes, "wherry down --all --yes")
    for other in others:
        try:
            removed_of[other.name] = _removed(other)
        except WherryError as error:
            left.append(noted(other, error))
    removed = _removed(place)

    def text() -> None:
        for name in removed_of:
            print(f"removed instance: {name}")
        for kind, names in removed.items():
            if names:
                shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
                print(f"removed {kind}: {shown}")
        if not any(removed.values()):
            print(f"There was nothing of instance {place.name}.")

    more = {"others": removed_of} if others else {}
    emit(output, "sweep", {"instance": place.name, "removed": removed, **more}, text)
    if left:
        what = f"{', '.join(left)} could not be removed"
        raise Failed(Code.PARTLY_DONE, what, "see above", "wherry down --all --instances")


def _removed(place: Instance) -> dict[str, list[str]]:
    """The removed objects of an instance, by kind, its daemon first."""
    pid, removed = _stop_and_purge(place)
    return ({"daemon": [str(pid)]} if pid else {}) | removed
