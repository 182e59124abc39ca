"""Checks before a move, with nothing changed.

Invariant: reads only; the destination of an accepted move answers, has room, and has everything that the node's
processes use.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from wherry.base.errors import Code, Refused
from wherry.base.two_kernels import may_differ
from wherry.cluster.lookup import DRAINED, find_host, known_hosts
from wherry.fabric.protocol import Fabric
from wherry.model.cpu_words import OF_THE_KERNEL
from wherry.model.records import Cluster, ClusterState, Host, HostFacts, Node, NodeState, Pin
from wherry.node.protocol import NodeDriver, Placement
from wherry.schedule.pinning import pin_after_move, taken_on
from wherry.schedule.placement import NodeNeed, Used, shortage, used_by
from wherry.store.store import Store

_MAX_LISTED = 5


def find_ends(store: Store, fabric: Fabric, node: Node, destination: str) -> tuple[Host, Host]:
    """The node's host and its destination; contacts these two hosts and no other. Refused when they are the same, or
    the destination is unknown."""
    hosts = known_hosts(store, fabric, (node.host, destination))
    host, source = find_host(hosts, destination), find_host(hosts, node.host)
    if host.name == node.host:
        others = ", ".join(h.name for h in hosts if h.name != node.host)
        raise Refused(Code.WRONG_STATE, f"{node.name} is on {host.name} already", "", f"other hosts: {others}")
    return source, host


def check_rows(store: Store, node: Node, cluster: Cluster, host: Host, partner: str = "") -> Pin | None:
    """The pin that the node gets at the host, None if it is not pinned. Refuses moves that rows alone forbid: a wrong
    state, an unfinished move of the node, a drained host, a host without room or free CPUs when the `partner` has left
    it. Contacts no host."""
    check_state(node, cluster)
    unfinished, nodes = store.moves(unfinished=True), store.nodes()
    if earlier := next((move for move in unfinished if move.node == node.name), None):
        # its end could not be written, perhaps, when the node's row was: finishing it would set the node's host back
        what = f"the move of {node.name} from {earlier.source} to {earlier.destination} is unfinished"
        raise Refused(
            Code.WRONG_STATE, what, f"move {earlier.id} is in phase {earlier.phase}", "wait: the daemon retries"
        )
    if store.host_flag(host.name, DRAINED):
        raise _drained(host)
    staying = [other for other in nodes if other.name != partner]
    used = used_by(staying, unfinished).get(host.name, Used())
    if reason := shortage(host, used, NodeNeed.of(node)):
        raise Refused(Code.NO_CAPACITY, f"{node.name} does not fit on {host.name}", reason, "wherry status")
    want = cluster.spec.flavor(node.index).pin
    return pin_after_move(node, want, host, taken_on(host.name, nodes, unfinished))


def check_host(
    fabric: Fabric, driver: NodeDriver, cluster: Cluster, hosts: tuple[Host, Host], ends: tuple[Placement, Placement]
) -> None:
    """Refuses a destination that cannot run the node, whatever room it has, and a node that cannot be moved as it is
    now. `hosts` and `ends` are the source and the destination. Balancing uses it, too."""
    here, there = ends
    check_alike(fabric, cluster, here.node, *hosts)
    if reason := driver.move_obstacle(here, there):
        raise Refused(Code.UNSUPPORTED, f"{here.node.name} cannot be moved", reason, "wherry doctor")
    driver.require_movable(here)


def check_alike(fabric: Fabric, cluster: Cluster, node: Node, source: Host, host: Host) -> None:
    """Refuses a host that lacks a feature of the node's source, whatever the node does now."""
    for end in (source, host):
        if end.down:
            raise Refused(Code.HOST_DOWN, f"host {end.name} is down", "it does not answer", "wherry status")
    if host.drained:
        raise _drained(host)
    _compatible(source, host, node, cluster.spec.without_cpu_features)
    files = fabric.missing_files(host.name, [*cluster.spec.files, *cluster.binds])
    if files:
        raise _incompatible(node, host, f"it lacks {', '.join(files[:_MAX_LISTED])}")


def _drained(host: Host) -> Refused:
    remedy = f"wherry host restore {host.name}"
    return Refused(Code.WRONG_STATE, f"host {host.name} is drained", "it takes no nodes", remedy)


def check_state(node: Node, cluster: Cluster) -> None:
    """Refuses a node that does not run, is being moved, or is being removed."""
    if node.state == NodeState.MOVING:
        raise Refused(Code.WRONG_STATE, f"{node.name} is being moved already", "", "wherry op list")
    if node.state != NodeState.RUNNING:
        raise Refused(Code.WRONG_STATE, f"{node.name} does not run", f"it is {node.state}", "wherry up FILE repairs it")
    if cluster.state == ClusterState.REMOVING:
        raise Refused(Code.WRONG_STATE, f"cluster {cluster.name} is being removed", "", "wherry op list")


def _compatible(source: Host, host: Host, node: Node, unused: Collection[str]) -> None:
    here, there = source.facts, host.facts
    if here is None or there is None:
        return
    shared = [("architecture", here.architecture, there.architecture)]
    two_kernels = node.kind == "container" and here.kernel != there.kernel  # a virtual machine brings its own
    if two_kernels and not may_differ():
        shared.append(("kernel", here.kernel, there.kernel))
    for noun, ours, theirs in shared:
        if ours != theirs:
            raise _incompatible(node, host, f"its {noun} is {theirs}, that of {source.name} is {ours}")
    told = OF_THE_KERNEL if two_kernels else frozenset[str]()
    if lacking := sorted(here.cpu_features - there.cpu_features - set(unused) - told):
        more = f" and {len(lacking) - _MAX_LISTED} more" if len(lacking) > _MAX_LISTED else ""
        text = f"its CPU lacks {', '.join(lacking[:_MAX_LISTED])}{more}, which programs on {source.name} may use"
        raise _incompatible(node, host, text)
    if node.kind == "container" and (why := _unlike(source.name, here, there)):
        raise _incompatible(node, host, why)


def _unlike(source: str, here: HostFacts, there: HostFacts) -> str:
    """Features that a container at the source uses and the destination lacks; empty when it has all."""
    if not there.criu:
        return "it has no CRIU that works"
    if _numbers(there.criu) < _numbers(here.criu):
        return f"its CRIU is {there.criu}, older than {here.criu} of {source}"
    for noun, ours, theirs in (
        ("cgroups are", here.cgroups, there.cgroups),
        ("runtime is", here.runtime.partition(" ")[0], there.runtime.partition(" ")[0]),
    ):
        if ours and ours != theirs:
            return f"its {noun} {theirs or 'none'}, and {ours} at {source}"
    return ""


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]+", version)]


def _incompatible(node: Node, host: Host, why: str) -> Refused:
    return Refused(Code.INCOMPATIBLE_HOST, f"{node.name} cannot run on {host.name}", why, "wherry status")
