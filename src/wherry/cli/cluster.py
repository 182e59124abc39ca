"""`wherry up`, `wherry down`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance, instance
from wherry.cli.names import ClusterName
from wherry.cli.output import Output, emit, say, table
from wherry.client import Client, daemon_process

_TRIES = 5
"""How many daemons `down --all` stops before it gives up."""


def up(file: Path, /, *, dry_run: bool = False, detach: bool = False, output: Output = "text") -> None:
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
    """
    from wherry.cli.files import read_cluster  # here: the models of files take as long as all of `status`

    data = read_cluster(file)
    with Client() as client:
        if dry_run:
            plan = client.plan(data, str(file))
            emit(output, "plan", plan, lambda: print(plan["text"]))
            return
        operation = client.up(data, str(file))
        if detach:
            emit(output, "operation", operation, lambda: print(operation.id))
            return
        result: dict[str, Any] = client.wait(operation.id, say).result or {}
        emit(output, "cluster", result, lambda: _print_up(result))


def down(name: ClusterName | None = None, /, *, all: bool = False, output: Output = "text") -> None:
    """End the jobs of a cluster and remove it, or remove everything of this instance.

    Parameters
    ----------
    name
        The cluster.
    all
        All clusters, the fabric, the daemon, the database and all output. Needs no daemon.
    """
    if all == bool(name):
        what = "name a cluster, or say --all" if not name else "a name and --all exclude each other"
        raise Refused(Code.USAGE, what, "", "wherry down NAME, or: wherry down --all")
    if all:
        _down_all(output)
        return
    with Client() as client:
        result: dict[str, Any] = client.wait(client.down(str(name)).id, say).result or {}
        emit(output, "down", result, lambda: print(f"{name} is removed ({len(result['nodes'])} nodes)."))


def _print_up(result: dict[str, Any]) -> None:
    cluster, nodes = result["cluster"], result["nodes"]
    print(f"{cluster['name']} is up: {len(nodes)} nodes in {cluster['subnet']}.")
    rows = [(node["name"], node["kind"], node["host"], node["address"]) for node in nodes]
    table(("NODE", "KIND", "HOST", "ADDRESS"), rows, "no nodes")


def _stop_and_purge(place: Instance) -> tuple[int | None, dict[str, list[str]]]:
    """Stops the daemon and removes the instance; its process id, and what was removed. Tried several times: a waiting
    client may just have started the next daemon."""
    daemon_process.forbid_resuming(place)
    tries, pid = _TRIES, daemon_process.stop(place)
    while True:
        tries -= 1
        try:
            return pid, daemon_process.sweep()
        except Refused as error:
            if error.code != Code.WRONG_STATE or not tries:
                raise
        pid = daemon_process.stop(place) or pid


def _down_all(output: str) -> None:
    place = instance()
    pid, removed = _stop_and_purge(place)
    removed = ({"daemon": [str(pid)]} if pid else {}) | removed

    def text() -> None:
        for kind, names in removed.items():
            if names:
                shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
                print(f"removed {kind}: {shown}")
        if not any(removed.values()):
            print(f"There was nothing of instance {place.name}.")

    emit(output, "sweep", {"instance": place.name, "removed": removed}, text)
