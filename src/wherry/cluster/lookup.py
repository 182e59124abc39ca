"""Lookup of hosts, clusters, nodes and jobs by name; the error for an unknown name suggests the nearest known one.

Invariant: reads only. A host is down when it does not answer or is declared lost, and drained when its flag is set.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from wherry.base.errors import Code, Refused
from wherry.fabric.protocol import Fabric
from wherry.model.records import Cluster, Host, Job, Node, NodeState
from wherry.store.store import Store

DRAINED, LOST, DRAINED_NODE, ANNOUNCED = "drained", "lost", "took ", "drain at "
"""Flags of hosts. The name of a node follows `took`: a drain moved that node off the host. Of an announced drain follow
its time, in whole seconds since the epoch, and why."""
ALLOCATED = "allocated"
"""Flag of a host that Slurm has allocated, and that has joined."""
JOB_REMOVED = "job.removed"
"""Kind of the event that a job was removed with its cluster; its text has the user."""
HISTORY_REMOVED = "job.history-removed"
"""Kind of the one event about all jobs that had ended when their cluster was removed."""


def not_found(noun: str, name: str, known: Iterable[str]) -> Refused:
    """The error for an unknown name: suggests the nearest of `known`, or lists them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, 1)
    why = f"did you mean {near[0]}?" if near else f"known: {', '.join(names[:8])}" if names else f"there is no {noun}"
    return Refused(Code.NOT_FOUND, f"no {noun} is named {name!r}", why, "wherry status")


def known_hosts(store: Store, fabric: Fabric, asked: Collection[str] | None = None) -> list[Host]:
    """The hosts as declared, with their current state. Refused when no fabric is up.

    A host has at most the memory that was found on it. Only the hosts in `asked` (None: all) are contacted, which may
    take seconds.
    """
    if not fabric.is_up():
        remedy = "wherry up FILE, or: wherry fabric up FILE"
        raise Refused(Code.WRONG_STATE, "no fabric is up", "clusters need its hosts", remedy)
    return [_as_known(store, fabric, host, asked is None or host.name in asked) for host in fabric.hosts()]


def _as_known(store: Store, fabric: Fabric, host: Host, ask: bool) -> Host:
    flags = store.host_flags(host.name)
    down = host.down or LOST in flags or ask and not fabric.reachable(host.name)
    facts = host.facts or (fabric.facts(host.name) if ask and not down else None)
    return host.model_copy(
        update={
            "drained": host.drained or DRAINED in flags,
            "down": down,
            "lost": LOST in flags,
            "drain_at": coming.at if (coming := announced(flags)) else None,
            "facts": facts,
            "memory": min(host.memory, facts.memory) if facts else host.memory,
        }
    )


@dataclass(frozen=True)
class Announced:
    """An announced drain of a host: when it begins (seconds since the epoch), and why."""

    at: float
    why: str

    @property
    def flag(self) -> str:
        """The host's flag."""
        return f"{ANNOUNCED}{self.at:.0f} {self.why}"


def announced(flags: Iterable[str]) -> Announced | None:
    """The announced drain among a host's flags; the earliest, when a daemon was killed as it replaced one."""
    found = [flag.removeprefix(ANNOUNCED).partition(" ") for flag in flags if flag.startswith(ANNOUNCED)]
    return min((Announced(float(at), why) for at, _, why in found), key=lambda each: each.at, default=None)


def find_host(hosts: list[Host], name: str) -> Host:
    """The host of that name. NOT_FOUND otherwise."""
    for host in hosts:
        if host.name == name:
            return host
    raise not_found("host", name, [host.name for host in hosts])


def find_cluster(store: Store, name: str) -> Cluster:
    """The cluster of that name. NOT_FOUND otherwise."""
    cluster = store.cluster(name)
    if cluster is None:
        raise not_found("cluster", name, [c.name for c in store.clusters()])
    return cluster


def find_node(store: Store, name: str) -> Node:
    """The node of that name. NOT_FOUND otherwise."""
    node = store.node(name)
    if node is None:
        raise not_found("node", name, [n.name for n in store.nodes()])
    return node


def is_moving(store: Store, name: str) -> bool:
    """Whether a node is being moved, by its row."""
    node = store.node(name)
    return node is not None and node.state is NodeState.MOVING


def find_job(store: Store, id: str) -> Job:
    """The job with this id. NOT_FOUND, or TAKEN_DOWN when it was removed with its cluster."""
    job = store.job(id)
    if job is None and (removed := store.newest_event(JOB_REMOVED, id, HISTORY_REMOVED)):
        raise Refused(Code.TAKEN_DOWN, f"job {id} was removed", removed.text, "wherry job list")
    if job is None:
        raise Refused(Code.NOT_FOUND, f"there is no job {id!r}", "", "wherry job list")
    return job


def tell_removed(store: Store, cluster: str, reason: str) -> None:
    """Writes down that the cluster's jobs are removed: one event for each that is under way, and one for its whole
    history, however long that is."""
    jobs = store.jobs(cluster)
    for job in jobs:
        if job.state.under_way:
            store.add_event(JOB_REMOVED, job.id, reason)
    if history := [job.id for job in jobs if not job.state.under_way]:
        store.add_event(HISTORY_REMOVED, cluster, reason, jobs=history)
