"""`wherry host`, `wherry site`: the hosts of nodes, and their sites."""

from __future__ import annotations

import time
from typing import Any

from cyclopts import App

from wherry.base.errors import Code, Refused
from wherry.base.moments import moment, parse_moment
from wherry.base.units import format_size
from wherry.cli import link
from wherry.cli.move import summary
from wherry.cli.names import HostName
from wherry.cli.output import Output, emit, say, table
from wherry.client import Client, Reader, Row, existing

app = App(name="host", help="Hosts: the machines that carry nodes.")
site = App(name="site", help="Sites: locations with a network of their own.")
site.command(link.app)


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List the hosts."""
    with Reader() as reader:
        hosts, nodes = reader.hosts(), reader.nodes()
    rows = [
        (h.name, h.site, _state(h), f"{h.cores:g}", format_size(h.memory), sum(n.host == h.name for n in nodes))
        for h in hosts
    ]
    header = ("HOST", "SITE", "STATE", "CORES", "MEMORY", "NODES")
    emit(output, "hosts", {"hosts": hosts}, lambda: table(header, rows, "No fabric is up. Next: wherry up FILE"))


@app.command
def show(host: HostName, /, *, output: Output = "text") -> None:
    """Show a host, its facts and its nodes.

    Parameters
    ----------
    host
        The host.
    """
    with Reader() as reader:
        hosts, nodes = reader.hosts(), reader.nodes()
    record = next((h for h in hosts if h.name == host), None)
    if record is None:
        known = ", ".join(h.name for h in hosts)
        raise Refused(
            Code.NOT_FOUND, f"no host is named {host!r}", f"known: {known}" if known else "", "wherry host list"
        )
    nodes_here = [node for node in nodes if node.host == host]
    facts = Row(record.facts or {})
    rows: list[tuple[str, object]] = [
        ("site", record.site),
        ("state", _state(record)),
        ("cores", f"{record.cores:g}"),
        ("memory", format_size(record.memory)),
        ("speed", record.speed),
    ]
    if record.get("drain_at"):
        rows.append(("drained at", moment(record.drain_at)))
    rows += _of_facts(facts) if facts else []
    rows.append(("nodes", ", ".join(node.name for node in nodes_here) or "none"))
    data = {"host": record, "nodes": nodes_here}
    emit(output, "host", data, lambda: table(("HOST", host), rows, ""))


@app.command
def capacity(*, output: Output = "text") -> None:
    """List the hosts' resources, and their free ones; without the users of the rest."""
    with Client() as client:
        hosts = client.capacity()
    rows = [
        (
            h["host"], h["site"], f"{h['free_cores']:g} of {h['cores']:g}",
            f"{format_size(h['free_memory'])} of {format_size(h['memory'])}", "yes" if h["usable"] else "no",
        )
        for h in hosts
    ]  # fmt: skip
    header = ("HOST", "SITE", "CORES FREE", "MEMORY FREE", "USABLE")
    emit(output, "capacity", {"hosts": hosts}, lambda: table(header, rows, "There are no hosts."))


@app.command
def add(uri: str, /, *, install: bool = False, detach: bool = False, output: Output = "text") -> None:
    """Prepare a machine as a host: copy the files that Wherry needs, and list its features. Needs root.

    A fabric file with `driver: ssh` then names it. Everything is in /var/lib/wherry of the machine.

    Parameters
    ----------
    uri
        How SSH reaches it as root: ssh://root@HOST[:PORT].
    install
        Have apt-get install there the Debian packages that it lacks, and fetch a CRIU when none works.
    detach
        Do not wait: print the operation.
    """
    with Client() as client:
        operation = client.add_machine(uri, install)
        if detach:
            emit(output, "operation", operation, lambda: print(operation.id))
            return
        result: dict[str, Any] = client.wait(operation.id, say).result or {}

    def text() -> None:
        facts = Row(result["facts"])
        how = "was copied" if result["copied"] else "was there"
        rows: list[tuple[str, object]] = [
            ("bundle", f"{result['bundle'][:12]} ({how})"),
            ("system", result["release"] or "unknown"),
            *_of_facts(facts),
        ]
        if result["installed"]:
            rows.append(("installed", ", ".join(result["installed"])))
        table(("MACHINE", result["uri"]), rows, "")
        if result["criu"]:
            print(f"Nodes run there and cannot be moved: {result['criu']}")

    emit(output, "machine", result, text)


@app.command
def remove(uri: str, /, *, output: Output = "text") -> None:
    """Remove the files of `wherry host add` from a machine. Needs root. Debian packages stay.

    Parameters
    ----------
    uri
        How SSH reaches it as root: ssh://root@HOST[:PORT].
    """
    with Client() as client:
        result: dict[str, Any] = client.wait(client.remove_machine(uri).id, say).result or {}
    emit(output, "machine", result, lambda: print(f"{result['uri']} has nothing of Wherry any more."))


@app.command
def drain(host: HostName, /, *, at: str = "", detach: bool = False, output: Output = "text") -> None:
    """Move all nodes off a host. It accepts no nodes until it is restored.

    Parameters
    ----------
    host
        The host.
    at
        Announce it: it begins then. 2026-12-24T06:00 or 06:00 (this machine's time), or +2h. A restore takes it back.
    detach
        Do not wait: print the operation.
    """
    undo = f"Undo: wherry host restore {host}"
    if at:
        when = _when(at)
        with existing(f"host {host!r}") as client:
            result: dict[str, Any] = client.wait(client.drain(host, when).id, say).result or {}
        emit(output, "drain", result, lambda: print(f"{host} will be drained at {moment(when)}.\n{undo}"))
        return
    with existing(f"host {host!r}") as client:
        _finish(client, client.drain(host), detach, output, f"{host} is drained", undo)


@app.command
def restore(host: HostName, /, *, detach: bool = False, output: Output = "text") -> None:
    """Let a drained or lost host accept nodes again, and move back the nodes that `drain` took off it.

    Parameters
    ----------
    host
        The host.
    detach
        Do not wait: print the operation.
    """
    with existing(f"host {host!r}") as client:
        _finish(client, client.restore(host), detach, output, f"{host} accepts nodes again", "")


@app.command
def lost(host: HostName, /, *, output: Output = "text") -> None:
    """Declare a silent host lost, so that nothing waits for it any more.

    Its nodes become lost and their jobs end; unfinished moves are finished or rolled back without it; clusters can be
    removed and repaired. Use this only when the machine is off or disconnected for good: a copy of a node that still
    runs there is not stopped, and would run beside its replacement. When the host is back, wherry host restore HOST
    first ends such copies.

    Parameters
    ----------
    host
        The host.
    """
    with existing(f"host {host!r}") as client:
        result: dict[str, Any] = client.wait(client.declare_lost(host).id, say).result or {}

    def text() -> None:
        print(f"{host} is declared lost, with {len(result['nodes'])} nodes: {', '.join(result['nodes']) or 'none'}.")
        print(f"Make sure that it is off. When it is back: wherry host restore {host}")

    emit(output, "lost", result, text)


@site.command(name="list")
def list_sites(*, output: Output = "text") -> None:
    """List the sites of the fabric."""
    with Reader() as reader:
        fabric = reader.fabric()["fabric"]
    rows = [
        (s["name"], ", ".join(host["name"] for host in fabric["hosts"] if host["site"] == s["name"]))
        for s in fabric["sites"]
    ]
    emit(output, "sites", {"sites": fabric["sites"]}, lambda: table(("SITE", "HOSTS"), rows, ""))


def _of_facts(facts: Row) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        ("kernel", f"{facts.kernel} {facts.architecture}"),
        ("processor", facts.cpu_model),
        ("runtime", facts.runtime or "none"),
        ("CRIU", facts.criu or "none that works"),
        ("cgroups", facts.get("cgroups") or "unknown"),
    ]
    bundle = facts.get("bundle", "")
    return [*rows, ("bundle", bundle[:12])] if bundle else rows


def _when(text: str) -> float:
    try:
        return parse_moment(text, time.time())
    except ValueError as error:
        raise Refused(Code.USAGE, f"--at {text!r} is no time", str(error), "wherry host drain --help") from None


def _finish(client: Client, operation: Row, detach: bool, output: str, done: str, after: str) -> None:
    if detach:
        emit(output, "operation", operation, lambda: print(operation.id))
        return
    result: dict[str, Any] = client.wait(operation.id, say).result or {}

    def text() -> None:
        for data in result["moves"]:
            print(summary(Row(data)).split("\n")[0])
        print(f"{done}: {len(result['moves'])} moved.")
        if after:
            print(after)

    emit(output, "drain", result, text)


def _state(host: Row) -> str:
    if host.get("absent"):
        return "not allocated"
    return "lost" if host.lost else "down" if host.down else "drained" if host.drained else "up"
