"""`wherry lease`: how long clusters stay."""

from __future__ import annotations

import time
from typing import Any

from cyclopts import App

from wherry.cli.names import ClusterName
from wherry.cli.output import Output, emit, seconds_of, table
from wherry.cli.quota import NONE, lease_of, lease_words
from wherry.client import Client, Reader

app = App(name="lease", help="Leases: the times at which clusters end.")


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List the clusters that have a lease, and when it ends."""
    with Reader() as reader:
        clusters = [cluster for cluster in reader.clusters() if cluster["lease"]]
    rows = [(c["name"], _moment(c["lease"]["ends"]), until(c["lease"])) for c in clusters]
    shown = [{"cluster": c["name"], **c["lease"]} for c in clusters]
    emit(output, "leases", {"leases": shown}, lambda: table(("CLUSTER", "ENDS", "IN"), rows, "No cluster has one."))


@app.command
def extend(name: ClusterName, /, *, by: str, output: Output = "text") -> None:
    """Have a cluster's lease end later, within your longest lease from now.

    Parameters
    ----------
    name
        The cluster.
    by
        How much later, such as 4h.
    """
    seconds = seconds_of("--by", by)
    with Client() as client:
        lease = client.extend_lease(name, seconds)
    _show(name, lease, output)


@app.command(name="set")
def set_(name: ClusterName, length: str, /, *, output: Output = "text") -> None:
    """Have a cluster's lease end so long from now.

    Parameters
    ----------
    name
        The cluster.
    length
        How long, such as 8h; none: it has no end.
    """
    seconds = None if length == NONE else seconds_of("LENGTH", length)
    with Client() as client:
        lease = client.set_lease(name, seconds)
    _show(name, lease, output)


@app.command
def limits(*, lease: str | None = None, longest: str | None = None, output: Output = "text") -> None:
    """Show the limits of leases, or change them. An account or project may have others (wherry user quota).

    Parameters
    ----------
    lease
        The lease of clusters whose file has none; none: they have no end.
    longest
        The longest lease; none: no limit.
    """
    with Client() as client:
        found = client.lease_limits()
        if lease is not None or longest is not None:
            found["usual"] = found["usual"] if lease is None else lease_of("--lease", lease)
            found["longest"] = found["longest"] if longest is None else lease_of("--longest", longest)
            found = client.set_lease_limits(found)
    text = f"Clusters have a lease of {lease_words(found['usual'])}, at most {lease_words(found['longest'])}."
    emit(output, "lease-limits", found, lambda: print(text))


def until(lease: dict[str, Any] | None) -> str:
    """How long a lease still is: `7h`; `-` for a cluster without one."""
    if lease is None:
        return "-"
    left = lease["ends"] - time.time()
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if left >= 2 * length:
            return f"{left / length:.0f}{unit}"
    return f"{left:.0f}s" if left > 0 else "ended"


def _show(name: str, lease: dict[str, Any] | None, output: str) -> None:
    text = f"The lease of {name} ends at {_moment(lease['ends'])}." if lease else f"{name} has no end."
    emit(output, "lease", {"cluster": name, "lease": lease}, lambda: print(text))


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
