"""The plan of `wherry up`: every decision, made before anything is changed.

Invariant: planning changes nothing; a plan can be applied unless the state has changed since.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import StrEnum

from wherry.base.cpu_list import format_cpu_list
from wherry.base.errors import Code, Refused
from wherry.base.units import format_size, format_span
from wherry.cluster.binds import binds_of, is_bound, named_directories
from wherry.cluster.lookup import find_host, known_hosts, not_found
from wherry.cluster.placements import Placements
from wherry.fabric.protocol import Fabric
from wherry.model.owner import Owner
from wherry.model.records import Cluster, ClusterState, Host, Node, NodeState, Pin, Record
from wherry.model.spec.cluster import ClusterSpec, Flavor
from wherry.node.as_user import as_user
from wherry.node.protocol import NodeDriver
from wherry.schedule.host_speed import Loads, Place
from wherry.schedule.pinning import (
    pin_at_start,
    pinned_count,
    require_pinning,
    taken_by_host,
    wish_at_start,
)
from wherry.schedule.placement import NodeNeed, Used, choose_places, shortage, used_by
from wherry.store.store import Store


class StepKind(StrEnum):
    ADD = "add"
    KEEP = "keep"
    REPAIR = "repair"
    REMOVE = "remove"


class Step(Record):
    """The step for one node; `host` is where the node will be (of a removal: where it is), `why` it was chosen among
    the possible ones."""

    kind: StepKind
    node: str
    index: int
    host: str
    text: str
    why: str = ""
    pin: Pin | None = None


class ClusterPlan(Record):
    """All steps for one cluster. `network` is the number of an existing cluster's network; `further` are directories
    that its containers get in addition. `served` are the user's directories that its virtual machines see; `unserved`
    is why they see none, or not all. Its new lease has `lease` seconds (None: no end), unless it `keeps_lease`."""

    spec: ClusterSpec
    owner: Owner
    steps: tuple[Step, ...]
    head_host: str
    binds: tuple[str, ...]
    further: tuple[str, ...] = ()
    network: int | None = None
    served: tuple[str, ...] = ()
    unserved: str = ""
    lease: float | None = None
    keeps_lease: bool = False

    @property
    def empty(self) -> bool:
        """True when the cluster is as in the file."""
        return not self.further and all(step.kind == StepKind.KEEP for step in self.steps)

    def of(self, *kinds: StepKind) -> list[Step]:
        """The steps of these kinds."""
        return [step for step in self.steps if step.kind in kinds]

    def text(self) -> str:
        """The plan as `--dry-run` prints it."""
        lines = [
            f"{step.text}: {step.why}" if step.why else step.text for step in self.steps if step.kind != StepKind.KEEP
        ]
        lines += [f"bind {path} into its containers" for path in self.further]
        if self.lease is not None:
            lines.append(f"remove the cluster {format_span(self.lease)} later, when its lease ends")
        counts = [f"{len(self.of(StepKind.ADD))} to create"]
        if repairs := self.of(StepKind.REPAIR):
            counts.append(f"{len(repairs)} to repair")
        counts.append(f"{len(self.of(StepKind.REMOVE))} to remove")
        return "\n".join([*lines, f"{', '.join(counts)}. Nothing was changed."])


def make_plan(
    store: Store,
    fabric: Fabric,
    drivers: dict[str, NodeDriver],
    placements: Placements,
    spec: ClusterSpec,
    owner: Owner,
    loads: Callable[[], Loads],
) -> ClusterPlan:
    """The plan that makes the cluster conform to `spec`. Refused with the reason when that is impossible. The `loads`
    of hosts are asked for only when there is a choice between them."""
    hosts = known_hosts(store, fabric)
    _require_drivers(drivers, spec, owner)
    _known_names(spec, hosts)
    cluster = store.cluster(spec.name)
    nodes = {node.index: node for node in store.nodes(spec.name)}
    if cluster:
        _may_change(store, cluster, spec, owner, nodes)

    alive = {i: n.state == NodeState.MOVING or _alive(drivers, placements, n) for i, n in nodes.items()}
    kept = {i: n for i, n in nodes.items() if alive[i] and i < spec.size}
    named = named_directories(spec.directories, owner)
    binds = cluster.binds if cluster else binds_of(fabric, hosts, owner, named)
    further = tuple(path for path in named if not is_bound(path, binds))
    if further and spec.kinds == {"vm"}:
        what = f"{further[0]} cannot be bound into the nodes of {spec.name}"
        raise Refused(
            Code.WRONG_STATE, what, "virtual machines mount at their start", f"wherry down {spec.name}, then wherry up"
        )
    where = _place(store, fabric, spec, owner, hosts, binds, nodes, kept, loads)
    pins = _pin(store, spec, hosts, {index: place.host for index, place in where.items()}, kept)

    steps = []
    for index in range(spec.size):
        name, host, why = f"{spec.name}-{index}", where[index].host, where[index].why
        if index in kept:
            steps.append(_step(StepKind.KEEP, index, name, host, f"keep {name} on {host}"))
        elif index in nodes:
            steps.append(
                _step(StepKind.REPAIR, index, name, host, f"repair {name} on {host}: stop and start it", pins[index])
            )
        else:
            made = f"create {name} on {host} ({_words(spec.flavor(index), pins[index])})"
            steps.append(_step(StepKind.ADD, index, name, host, made, pins[index], why))
    for index, node in sorted(nodes.items(), reverse=True):
        if index >= spec.size:
            steps.append(_step(StepKind.REMOVE, index, node.name, node.host, f"remove {node.name} from {node.host}"))
    return ClusterPlan(
        spec=spec,
        owner=owner,
        steps=tuple(steps),
        head_host=_head_host(cluster, hosts, where[0].host),
        binds=binds,
        further=further,
        network=cluster.network if cluster else None,
    )


def need_of(spec: ClusterSpec, index: int) -> NodeNeed:
    """The CPUs and memory that a new node of the cluster takes on its host."""
    flavor = spec.flavor(index)
    return NodeNeed(flavor.cpus, flavor.memory, pinned_count(flavor), wish_at_start(flavor))


def _by_freedom(spec: ClusterSpec, indices: Iterable[int]) -> list[int]:
    """First the nodes that name their CPUs, then nodes that name a NUMA node, pinned ones, the others."""
    wishes = {index: wish_at_start(spec.flavor(index)) for index in indices}
    return sorted(wishes, key=lambda index: (wish.freedom if (wish := wishes[index]) else math.inf, index))


def _words(flavor: Flavor, pin: Pin | None) -> str:
    pinned = f", pinned to CPUs {format_cpu_list(pin.cpus)}" if pin else ""
    disk = f", {format_size(flavor.disk)} of disk" if flavor.disk else ""
    cpus = f"{flavor.cpus:g} CPU{'' if flavor.cpus == 1 else 's'}"
    return f"{flavor.kind}, {cpus}, {format_size(flavor.memory)}{disk}{pinned}"


def _pin(
    store: Store, spec: ClusterSpec, hosts: list[Host], where: dict[int, str], kept: dict[int, Node]
) -> dict[int, Pin | None]:
    """The pin of each node that is to be started, on the host that was chosen for it. Refused when there is none. Nodes
    that are removed leave theirs before."""
    starting = [index for index in range(spec.size) if index not in kept]
    staying = {node.name for node in kept.values()}
    others = [node for node in store.nodes() if node.cluster != spec.name or node.name in staying]
    moves, known = store.moves(unfinished=True), {host.name: host for host in hosts}
    taken = dict.fromkeys(known, dict[int, str]()) | taken_by_host(others, moves)
    pins = dict[int, Pin | None].fromkeys(range(spec.size))
    for index in _by_freedom(spec, starting):
        host, name = where[index], f"{spec.name}-{index}"
        pin = pins[index] = pin_at_start(name, spec.flavor(index), known[host], taken[host])
        taken[host] = taken[host] | dict.fromkeys(pin.cpus if pin else (), name)
    return pins


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
                    f"{name}-{index} was made with {old}, the file has {new}",
                    f"wherry down {name}, then wherry up again",
                )
    if nodes and cluster.spec.without_cpu_features != spec.without_cpu_features:
        what = f"the CPU features that ranks of {name} do without cannot be changed"
        why = "programs that run there were started with other features"
        raise Refused(Code.WRONG_STATE, what, why, f"wherry down {name}, then wherry up again")
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


def _alive(drivers: dict[str, NodeDriver], placements: Placements, node: Node) -> bool:
    return node.state == NodeState.RUNNING and drivers[node.kind].alive(placements.placement(node))


def _place(
    store: Store,
    fabric: Fabric,
    spec: ClusterSpec,
    owner: Owner,
    hosts: list[Host],
    binds: tuple[str, ...],
    nodes: dict[int, Node],
    kept: dict[int, Node],
    loads: Callable[[], Loads],
) -> dict[int, Place]:
    """A host per index: kept nodes stay, lost ones if their host has room; `choose_places` places the rest."""
    # Checked with the owner's rights: an error must not reveal files in directories that the owner cannot read.
    needs = as_user(owner, lambda: {host.name: fabric.missing_files(host.name, list(spec.files)) for host in hosts})
    missing = {host.name: needs[host.name] + fabric.missing_files(host.name, list(binds)) for host in hosts}
    able = [host for host in hosts if not missing[host.name]]
    gone = {node.name for node in nodes.values()} - {node.name for node in kept.values()}
    used = used_by([n for n in store.nodes() if n.name not in gone], store.moves(unfinished=True))
    where = {index: Place(node.host, "it is there") for index, node in kept.items()}
    for index in range(spec.size):
        need = need_of(spec, index)
        host = next((h for h in able if index in nodes and index not in kept and h.name == nodes[index].host), None)
        if host and not shortage(host, used.get(host.name, Used()), need):
            where[index] = Place(host.name, "it was there")
            used[host.name] = used.get(host.name, Used()).plus(need)
    rest = _by_freedom(spec, (index for index in range(spec.size) if index not in where))
    held = [place.host for place in where.values()]
    own = {host.name: held.count(host.name) for host in hosts}
    needs_of_rest = [need_of(spec, index) for index in rest]
    allowed = [h for h in able if h.name in (spec.hosts or (h.name,)) and h.site in (spec.sites or (h.site,))]
    for index in rest:
        require_pinning(f"{spec.name}-{index}", spec.flavor(index), allowed)
    measured = loads() if rest and len(able) > 1 and len(spec.hosts) != 1 else {}
    try:
        chosen = choose_places(needs_of_rest, able, used, spec.placement, spec.sites, spec.hosts, own, measured)
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


def _step(kind: StepKind, index: int, node: str, host: str, text: str, pin: Pin | None = None, why: str = "") -> Step:
    return Step(kind=kind, index=index, node=node, host=host, text=text, why=why, pin=pin)
