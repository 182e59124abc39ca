"""The quota of the account or project to which a cluster belongs. Users of the machine have none.

Invariant: callers under `Store.reserving`, which write the rows of the nodes before releasing that, exceed no
quota however many do so at once. An account that was removed gets nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.cluster.plan import ClusterPlan, StepKind, need_of
from wherry.model.accounts import Usage, is_account
from wherry.model.records import Cluster, Node
from wherry.schedule.quota import excess, usage_of
from wherry.store.store import Store


def require_quota(store: Store, plan: ClusterPlan) -> None:
    """QUOTA_EXCEEDED when the plan's owner may not have the nodes that it adds, beside the nodes that it keeps."""
    uid = plan.owner.uid
    if not is_account(uid):
        return
    owner = store.accounts.of_uid(uid)
    if owner is None:
        raise Refused(Code.PERMISSION, f"{plan.spec.name} cannot be made", "its user or project was removed", "")
    used = usage(store, uid, now(), {step.node for step in plan.of(StepKind.REMOVE)})
    if why := excess(owner.quota, used, [need_of(plan.spec, step.index) for step in plan.of(StepKind.ADD)]):
        what = f"{plan.spec.name} is more than {owner.name} may have"
        raise Refused(Code.QUOTA_EXCEEDED, what, why, "wherry user me; an admin changes it: wherry user quota NAME")


def usage(store: Store, uid: int, present: float, besides: Collection[str] = ()) -> Usage:
    """The resources of the clusters of a uid, without some nodes, and all node-hours that it has used."""
    seconds = store.node_hours.seconds(uid)  # before the nodes, so none is counted twice
    return usage_among(store.clusters(), store.nodes(), uid, present, seconds, besides)


def usage_among(
    clusters: Iterable[Cluster],
    nodes: Iterable[Node],
    uid: int,
    present: float,
    seconds: float,
    besides: Collection[str] = (),
) -> Usage:
    """The same, of rows that were read; `seconds` are those of nodes that are gone."""
    made = {cluster.name: cluster.created for cluster in clusters if cluster.owner_uid == uid}
    own = [node for node in nodes if node.cluster in made]
    seconds += sum(max(0.0, present - (node.since or made[node.cluster])) for node in own)
    used = usage_of(node for node in own if node.name not in besides)
    return used.model_copy(update={"hours": seconds / 3600.0})
