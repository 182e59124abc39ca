"""The clusters that wait for room: their order, and which may start, by the present rows. Contacts no host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.cluster.leases import limits_for
from wherry.cluster.lookup import known_hosts
from wherry.cluster.owners_quota import usage
from wherry.cluster.plan import need_of
from wherry.model.accounts import is_account
from wherry.model.owner import Owner
from wherry.model.queue import WaitingCluster
from wherry.model.records import Host, Operation, OperationState
from wherry.model.spec.cluster import ClusterSpec
from wherry.schedule.leases import lease_for
from wherry.schedule.queue import Verdict, Wanted, decide, in_order
from wherry.schedule.quota import excess
from wherry.service.context import ServiceContext
from wherry.store.store import Store

_LAST = "last"


def wanted_of(store: Store, spec: ClusterSpec, owner: Owner, key: str, priority: int = 0) -> Wanted:
    """The nodes that a cluster lacks."""
    nodes = {node.index: node for node in store.nodes(spec.name)}
    needs = tuple(need_of(spec, index) for index in range(spec.size) if index not in nodes)
    obstacle, lease, kept = "", None, store.leases.of(spec.name)
    try:
        lease = max(0.0, kept.ends - now()) if kept else lease_for(spec.lease, limits_for(store, owner.uid))
    except ValueError as error:
        obstacle = str(error)
    if is_account(owner.uid):
        found = store.accounts.of_uid(owner.uid)
        why = excess(found.quota, usage(store, owner.uid, now()), needs) if found else "its owner was removed"
        obstacle = f"the quota of {found.name}: {why}" if found and why else why or obstacle
    own = Counter(node.host for index, node in nodes.items() if index < spec.size)
    return Wanted(
        key=key, uid=owner.uid, priority=priority, needs=needs, placement=spec.placement, sites=spec.sites,
        hosts=spec.hosts, lease=lease, own=own, obstacle=obstacle,
    )  # fmt: skip


def waiting(context: ServiceContext) -> list[WaitingCluster]:
    """The clusters that wait, as they entered; not clusters that are being made."""
    found = [(one, operation_of(context, one)) for one in context.store.queue.all()]
    return [one for one, operation in found if operation and operation.state is OperationState.WAITING]


def operation_of(context: ServiceContext, one: WaitingCluster) -> Operation | None:
    """The operation that makes a cluster; None while it enters the queue."""
    with suppress(Refused):
        return context.operations.get(one.operation)
    return None


def verdicts(
    context: ServiceContext, queue: Sequence[WaitingCluster], obstacles: Mapping[str, str], *last: Wanted
) -> list[Verdict]:
    """A verdict for each that waits, in the order of the queue, and for some behind all of them. `obstacles` are
    further ones, by the operation."""
    store, hosts = context.store, _hosts(context)
    wanted = [wanted_of(store, one.spec, one.owner, one.operation, one.priority) for one in queue]
    wanted = [replace(one, obstacle=one.obstacle or obstacles.get(one.key, "")) for one in wanted]
    ordered = [*in_order(wanted, Counter(cluster.owner_uid for cluster in store.clusters())), *last]
    if hosts is None:  # the first to start makes the fabric
        first = next((one.key for one in ordered if not one.obstacle), "")
        return [Verdict(one.key, one.key == first, one.obstacle or "no fabric is up yet") for one in ordered]
    ends = {name: lease.ends for name, lease in store.leases.all().items()}
    return decide(ordered, hosts, store.nodes(), store.moves(unfinished=True), ends, now())


def require_turn(context: ServiceContext, spec: ClusterSpec, owner: Owner) -> None:
    """NO_CAPACITY when a cluster would delay another that waits."""
    queue = waiting(context)
    if queue and not (found := verdicts(context, queue, {}, wanted_of(context.store, spec, owner, _LAST))[-1]).starts:
        what = f"{spec.name} would delay clusters that wait for room"
        raise Refused(Code.NO_CAPACITY, what, found.why, "wherry up FILE --wait; wherry queue list")


def _hosts(context: ServiceContext) -> list[Host] | None:
    managers = context.managers
    return known_hosts(context.store, managers.fabric, ()) if managers and managers.fabric.is_up() else None
