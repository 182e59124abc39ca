"""Clusters and nodes as reservations and instances, as an account may see them.

Invariants: things of others are not there. An instance that ended stays `terminated` for an hour.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from wherry.base.clock import now
from wherry.base.errors import WherryError
from wherry.model.ec2 import Reservation, Tags
from wherry.model.records import Cluster, ClusterState, Node, NodeState, Operation, OperationState
from wherry.service.ec2 import catalog
from wherry.service.ec2.asked import Asked
from wherry.service.ec2.errors import Ec2Error

KEPT_SECONDS = 3600.0
_BEGINS_SECONDS = 60.0
"""How long a reservation without an operation counts as about to begin."""
CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
_ENDED = "Client.UserInitiatedShutdown"


@dataclass(frozen=True)
class Instance:
    """A node, or a former one. `why`: code and words, when it does not run."""

    id: str
    reservation: Reservation
    index: int
    state: str
    node: Node | None = None
    cluster: Cluster | None = None
    zone: str = ""
    type: str = ""
    why: tuple[str, str] | None = None
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def order(self) -> str:
        """Where it is in lists: by launch, reservation and index."""
        return f"{self.reservation.created:020.6f}/{self.reservation.id}/{self.index:05}"


def instance_id(reservation: str, index: int) -> str:
    """The id of an instance."""
    return catalog.made_id("i", reservation, str(index))


def reservation_of(cluster: Cluster) -> Reservation:
    """That of a cluster which another interface made."""
    flavor = cluster.spec.flavor(0)
    return Reservation(
        id=catalog.made_id("r", cluster.name, repr(cluster.created)),
        uid=cluster.owner_uid,
        created=cluster.created,
        cluster=cluster.name,
        count=cluster.spec.size,
        type=catalog.type_of(flavor.cpus, flavor.memory),
        image=catalog.CONTAINER_ID if flavor.kind == "container" else catalog.image_id(flavor.image),
    )


def instances(asked: Asked) -> list[Instance]:
    """All that the account sees. An instance that has ended is kept as such, and forgotten after an hour."""
    commands, caller = asked.commands, asked.caller
    rows = [one for one in asked.kept.all(Reservation) if caller.sees(one.uid)]
    operations = {row.id: _operation(asked, row) for row in rows}  # before clusters: a done one has made its own
    clusters = {cluster.name: cluster for cluster in commands.clusters()}
    nodes: dict[str, dict[int, Node]] = {}
    for node in commands.nodes(None):
        nodes.setdefault(node.cluster, {})[node.index] = node
    tags = {one.id: one.tags for one in asked.kept.all(Tags)}
    managers = asked.context.managers
    sites = {host.name: host.site for host in managers.fabric.spec.hosts} if managers else {}
    found = []
    for row in rows:
        cluster = clusters.get(row.cluster)
        if cluster and not _is_of(cluster, row):
            cluster = None
        if cluster:
            del clusters[row.cluster]
        kept = _settled(asked, row, cluster, operations[row.id])
        if kept:
            found += _of(kept, cluster, nodes.get(row.cluster, {}), operations[row.id], tags, sites)
    for cluster in clusters.values():
        found += _of(reservation_of(cluster), cluster, nodes.get(cluster.name, {}), None, tags, sites)
    return sorted(found, key=lambda one: one.order)


def keep(asked: Asked, reservation: Reservation) -> None:
    """Makes a row of a reservation that has none, so that it is listed when it has ended, and its tags end with it."""
    if asked.kept.one(Reservation, reservation.id) is None:
        asked.kept.put(reservation)


def chosen(found: Collection[Instance], ids: Collection[str]) -> list[Instance]:
    """Those with these ids, in this order. InvalidInstanceID.NotFound."""
    known = {one.id: one for one in found}
    if missing := [id for id in ids if id not in known]:
        shown = ", ".join(id[:40] for id in missing[:8])
        raise Ec2Error("InvalidInstanceID.NotFound", f"The instance ID '{shown}' does not exist")
    return [known[id] for id in dict.fromkeys(ids)]


def _is_of(cluster: Cluster, row: Reservation) -> bool:
    """Whether a cluster with the name that the row has is that of the row, not a later one."""
    same = _made_here(row) or cluster.created == row.created
    return row.ended is None and cluster.owner_uid == row.uid and same


def _made_here(row: Reservation) -> bool:
    """Whether the reservation was made by RunInstances, and not by another interface."""
    return bool(row.request)


def _operation(asked: Asked, row: Reservation) -> Operation | None:
    if not row.operation or row.ended is not None:
        return None
    try:
        return asked.context.operations.get(row.operation)
    except WherryError:  # forgotten
        return None


def _begins(row: Reservation, operation: Operation | None) -> bool:
    """Whether its cluster is still to come."""
    if not row.operation:
        return _made_here(row) and now() - row.created < _BEGINS_SECONDS
    return operation is not None and operation.state is OperationState.RUNNING


def _settled(
    asked: Asked, row: Reservation, cluster: Cluster | None, operation: Operation | None
) -> Reservation | None:
    """The row as it is from now on; None when it is forgotten."""
    if row.ended is None and cluster is None and not _begins(row, operation):
        failed = operation is not None and operation.state is OperationState.FAILED
        reason = (operation.error or {}).get("what", "it failed") if operation and failed else ""
        row = row.model_copy(update={"ended": now(), "reason": reason})
        asked.kept.put(row)
    elif row.ended is not None and now() - row.ended > KEPT_SECONDS:
        for id in (row.id, *(instance_id(row.id, index) for index in range(row.count))):
            asked.kept.drop(Tags, id)
        asked.kept.drop(Reservation, row.id)
        return None
    return row


def _of(
    row: Reservation,
    cluster: Cluster | None,
    nodes: dict[int, Node],
    operation: Operation | None,
    tags: dict[str, dict[str, str]],
    sites: dict[str, str],
) -> list[Instance]:
    """The instances of a reservation: as many as were asked for, or as its cluster has by now."""
    found = []
    for index in sorted({*range(row.count), *(nodes if cluster else ())}):
        id, node = instance_id(row.id, index), nodes.get(index) if cluster else None
        state, why = _state(row, cluster, node, operation)
        told = {"wherry:cluster": row.cluster, "wherry:node": f"{row.cluster}-{index}"}
        found.append(
            Instance(
                id, row, index, state, node, cluster,
                zone=sites.get(node.host, row.zone) if node else row.zone,
                type=catalog.type_of(node.cpus, node.memory) if node else row.type,
                why=why, tags={**tags.get(id, {}), **told},
            )
        )  # fmt: skip
    return found


def _state(
    row: Reservation, cluster: Cluster | None, node: Node | None, operation: Operation | None
) -> tuple[str, tuple[str, str] | None]:
    if cluster is None:
        if row.ended is None:
            return "pending", None
        return "terminated", ("Server.InternalError", row.reason) if row.reason else (_ENDED, "it was terminated")
    if cluster.state is ClusterState.REMOVING:
        return "shutting-down", (_ENDED, "it is being terminated")
    if node is not None and node.state in (NodeState.RUNNING, NodeState.MOVING):
        return "running", None
    if cluster.state is ClusterState.MAKING or _begins(row, operation):
        return "pending", None
    if node is None:
        return "terminated", (_ENDED, "its cluster was made smaller")
    why = cluster.reason or f"it is {node.state}"
    return "stopped", ("Server.InternalError", f"{why}. Next: wherry up, or terminate it")
