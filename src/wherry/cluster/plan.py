"""The plan of `wherry up`: every decision, made before anything is changed.

Invariant: planning changes nothing; a plan can be applied unless the state has changed since.
"""

from __future__ import annotations

from enum import StrEnum

from wherry.base.errors import Code, Refused
from wherry.base.units import format_size
from wherry.cluster.binds import binds_of
from wherry.cluster.lookup import find_host, known_hosts, not_found
from wherry.cluster.placements import Placements
from wherry.fabric.protocol import Fabric
from wherry.model.owner import Owner
from wherry.model.records import Cluster, ClusterState, Host, Node, NodeState, Record
from wherry.model.spec.cluster import ClusterSpec, Flavor
from wherry.node.as_user import as_user
from wherry.node.protocol import NodeDriver
from wherry.schedule.placement import NodeNeed, Used, place_nodes, shortage, used_by
from wherry.store.store import Store


class StepKind(StrEnum):
    ADD = "add"
    KEEP = "keep"
    REPAIR = "repair"
    REMOVE = "remove"


class Step(Record):
    """The step for one node; `host` is where the node will be (of a removal: where it is)."""

    kind: StepKind
    node: str
    index: int
    host: str
    text: str


class ClusterPlan(Record):
    """All steps for one cluster. `network` is the number of an existing cluster's network."""

    spec: ClusterSpec
    owner: Owner
    steps: tuple[Step, ...]
    head_host: str
    binds: tuple[str, ...]
    network: int | None = None

    @property
    def empty(self) -> bool:
        """True when the cluster is as the file says."""
        return all(step.kind == StepKind.KEEP for step in self.steps)

    def of(self, *kinds: StepKind) -> list[Step]:
        """The steps of these kinds."""
        return [step for step in self.steps if step.kind in kinds]

    def text(self) -> str:
        """The plan as `--dry-run` prints it."""
        lines = [step.text for step in self.steps if step.kind != StepKind.KEEP]
        counts = [f"{len(self.of(StepKind.ADD))} to create"]
        if repairs := self.of(StepKind.REPAIR):
            counts.append(f"{len(repairs)} to repair")
        counts.append(f"{len(self.of(StepKind.REMOVE))} to remove")
        return "\n".join([*lines, f"{', '.join(counts)}. Nothing was changed."])


def make_plan(
    store: Store, fabric: Fabric, drivers: dict[str, NodeDriver], places: Placements, spec: ClusterSpec, owner: Owner
) -> ClusterPlan:
    """The plan that makes the cluster conform to `spec`. Refused with the reason when that is impossible."""
    hosts = known_hosts(store, fabric)
    _require_drivers(drivers, spec, owner)
    _known_names(spec, hosts)
    cluster = store.cluster(spec.name)
    nodes = {node.index: node for node in store.nodes(spec.name)}
    if cluster:
        _may_change(store, cluster, spec, owner, nodes)

    alive = {i: n.state == NodeState.MOVING or _alive(drivers, places, n) for i, n in nodes.items()}
    kept = {i: n for i, n in nodes.items() if alive[i] and i < spec.size}
    binds = cluster.binds if cluster else binds_of(fabric, hosts, owner)
    where = _place(store, fabric, spec, owner, hosts, binds, nodes, kept)

    steps = []
    for index in range(spec.size):
        name, host = f"{spec.name}-{index}", where[index]
        if index in kept:
            steps.append(_step(StepKind.KEEP, index, name, host, f"keep {name} on {host}"))
        elif index in nodes:
            steps.append(_step(StepKind.REPAIR, index, name, host, f"repair {name} on {host}: stop and start it"))
        else:
            made = f"create {name} on {host} ({_words(spec.flavor(index))})"
            steps.append(_step(StepKind.ADD, index, name, host, made))
    for index, node in sorted(nodes.items(), reverse=True):
        if index >= spec.size:
            steps.append(_step(StepKind.REMOVE, index, node.name, node.host, f"remove {node.name} from {node.host}"))
    return ClusterPlan(
        spec=spec,
        owner=owner,
        steps=tuple(steps),
        head_host=_head_host(cluster, hosts, where[0]),
        binds=binds,
        network=cluster.network if cluster else None,
    )


def need_of(spec: ClusterSpec, index: int) -> NodeNeed:
    """The CPUs and memory that a node of the cluster takes on its host."""
    flavor = spec.flavor(index)
    return NodeNeed(flavor.cpus, flavor.memory)


def _words(flavor: Flavor) -> str:
    return f"{flavor.kind}, {flavor.cpus:g} CPU{'' if flavor.cpus == 1 else 's'}, {format_size(flavor.memory)}"


def _require_drivers(drivers: dict[str, NodeDriver], spec: ClusterSpec, owner: Owner) -> None:
    for kind in sorted(spec.kinds):
        driver = drivers.get(kind)
        if driver is None:
            what, known = f"this fabric cannot run nodes of kind {kind!r}", f"known: {', '.join(drivers)}"
            raise Refused(Code.UNSUPPORTED, what, known, "wherry doctor")
        if reason := driver.unsupported():
            raise Refused(Code.UNSUPPORTED, f"this machine cannot run nodes of kind {kind!r}", reason, "wherry doctor")
    for flavor in dict.fromkeys(map(spec.flavor, range(spec.size))):
        drivers[flavor.kind].check(flavor, owner)


def _known_names(spec: ClusterSpec, hosts: list[Host]) -> None:
    sites = {host.site for host in hosts}
    for site in spec.sites:
        if site not in sites:
            raise not_found("site", site, sites)
    for name in spec.hosts:
        find_host(hosts, name)


def _may_change(store: Store, cluster: Cluster, spec: ClusterSpec, owner: Owner, nodes: dict[int, Node]) -> None:
    name = cluster.name
    if cluster.owner_uid != owner.uid:
        why = "names of clusters are unique on a machine"
        raise Refused(Code.NAME_TAKEN, f"cluster {name} belongs to another user", why, "choose another name")
    if cluster.state == ClusterState.REMOVING:
        raise Refused(Code.WRONG_STATE, f"cluster {name} is being removed", cluster.reason, f"wherry down {name}")
    for index in nodes:
        before, after = cluster.spec.flavor(index), spec.flavor(index)
        for key in Flavor.model_fields:
            old, new = getattr(before, key), getattr(after, key)
            if index < spec.size and old != new:
                raise Refused(
                    Code.WRONG_STATE,
                    f"{key} of a running cluster cannot be changed",
                    f"{name}-{index} was made with {old}, the file says {new}",
                    f"wherry down {name}, then wherry up again",
                )
    surplus = [node for index, node in nodes.items() if index >= spec.size]
    for node in surplus:
        if node.state == NodeState.MOVING:
            raise Refused(Code.WRONG_STATE, f"{node.name} cannot be removed while it moves", "", "wherry op list")
    running = [job for job in store.jobs(name) if job.state.under_way]
    if surplus and running:
        raise Refused(
            Code.WRONG_STATE,
            f"{surplus[0].name} cannot be removed while job {running[0].id} runs on {name}",
            "",
            f"wherry job cancel {running[0].id}, or wait until it has ended",
        )


def _alive(drivers: dict[str, NodeDriver], places: Placements, node: Node) -> bool:
    return node.state == NodeState.RUNNING and drivers[node.kind].alive(places.place(node))


def _place(
    store: Store,
    fabric: Fabric,
    spec: ClusterSpec,
    owner: Owner,
    hosts: list[Host],
    binds: tuple[str, ...],
    nodes: dict[int, Node],
    kept: dict[int, Node],
) -> dict[int, str]:
    """A host per index: kept nodes stay, lost ones stay if their host has room, the rest goes where `place` says."""
    # Checked with the owner's rights: an error must not reveal files in directories that the owner cannot read.
    needs = as_user(owner, lambda: {host.name: fabric.missing_files(host.name, list(spec.files)) for host in hosts})
    missing = {host.name: needs[host.name] + fabric.missing_files(host.name, list(binds)) for host in hosts}
    able = [host for host in hosts if not missing[host.name]]
    gone = {node.name for node in nodes.values()} - {node.name for node in kept.values()}
    used = used_by([n for n in store.nodes() if n.name not in gone], store.moves(unfinished=True))
    where = {index: node.host for index, node in kept.items()}
    for index in range(spec.size):
        need = need_of(spec, index)
        host = next((h for h in able if index in nodes and index not in kept and h.name == nodes[index].host), None)
        if host and not shortage(host, used.get(host.name, Used()), need):
            where[index] = host.name
            used[host.name] = used.get(host.name, Used()).plus(need)
    rest = [index for index in range(spec.size) if index not in where]
    own = {host.name: list(where.values()).count(host.name) for host in hosts}
    needs_of_rest = [need_of(spec, index) for index in rest]
    try:
        chosen = place_nodes(needs_of_rest, able, used, spec.placement, spec.sites, spec.hosts, own)
    except Refused as error:
        for name, files in missing.items():
            if files and (not spec.hosts or name in spec.hosts):
                what = f"host {name} lacks {files[0]}, which the nodes need"
                raise Refused(Code.INCOMPATIBLE_HOST, what, error.what, error.next) from None
        raise
    return where | dict(zip(rest, chosen, strict=True))


def _head_host(cluster: Cluster | None, hosts: list[Host], first: str) -> str:
    """The host of launchers: the old one while it is up, else the first node's."""
    if cluster and any(host.name == cluster.head_host and not host.down for host in hosts):
        return cluster.head_host
    return first


def _step(kind: StepKind, index: int, node: str, host: str, text: str) -> Step:
    return Step(kind=kind, index=index, node=node, host=host, text=text)
