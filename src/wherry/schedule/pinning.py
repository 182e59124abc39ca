"""The CPUs of its host that a pinned node gets, at its start and wherever it moves, and the hosts that have them.

Invariants: pure; a CPU of a host is the pin of one node at most. Nodes that are not pinned run anywhere. A host that
`lacks_cpus` finds nothing against gives a pin to each new node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wherry.base.cpu_list import format_cpu_list
from wherry.base.errors import Code, Refused
from wherry.model.records import Host, HostFacts, Move, Node, Pin
from wherry.model.spec.cluster import Flavor, PinSpec


def pinned_count(flavor: Flavor) -> int:
    """The number of CPUs that a node of this flavor has to itself; 0 when it is not pinned."""
    if flavor.pin is None:
        return 0
    return len(flavor.pin.cpus) or math.ceil(flavor.cpus)


@dataclass(frozen=True)
class PinWish:
    """A node's wish for CPUs of a host that is not chosen yet: the named ones, or so many, of NUMA node `memory`
    or, where it moves with memory that is bound, of any `one_numa` node."""

    count: int
    cpus: tuple[int, ...] = ()
    memory: int | None = None
    one_numa: bool = False

    @property
    def freedom(self) -> int:
        """The less there is, the earlier its CPUs are chosen."""
        return 0 if self.cpus else 1 if self.memory is not None else 2 if self.one_numa else 3


def wish_at_start(flavor: Flavor) -> PinWish | None:
    """The wish of a new node of this flavor; None when it is not pinned."""
    pin = flavor.pin
    return PinWish(pinned_count(flavor), pin.cpus, pin.memory) if pin else None


def wish_of_move(node: Node) -> PinWish | None:
    """The wish of a node where it moves (see `pin_after_move`); None when it is not pinned."""
    return PinWish(len(node.pin.cpus), one_numa=node.pin.memory is not None) if node.pin else None


def lacks_cpus(host: Host, held: Mapping[int, str], wishes: Sequence[PinWish]) -> str:
    """Why the host has no CPUs for all these nodes together, beside the `held` CPUs; empty when it has."""
    facts = host.facts
    if facts is None or not facts.cpus:
        return f"nothing on host {host.name} pins processes to CPUs"
    free = set(facts.cpus) - held.keys()
    for wish in sorted(wishes, key=lambda one: one.freedom):
        if wish.memory is not None and wish.memory not in facts.numa:
            return f"host {host.name} has no NUMA node {wish.memory}: it has {format_cpu_list(facts.numa)}"
        if wish.cpus:
            if absent := set(wish.cpus) - set(facts.cpus):
                return f"host {host.name} has no CPU {format_cpu_list(absent)}: it has {format_cpu_list(facts.cpus)}"
            if gone := set(wish.cpus) - free:
                return f"on host {host.name} CPU {min(gone)} is {held.get(min(gone), 'another new node')}'s"
            free -= set(wish.cpus)
            continue
        near = [free & set(cpus) for number, cpus in facts.numa.items() if wish.memory in (None, number)]
        rooms = near if wish.memory is not None or wish.one_numa else [free]
        room = next((cpus for cpus in rooms if len(cpus) >= wish.count), None)
        if room is None:
            where = f"of NUMA node {wish.memory}" if wish.memory is not None else "of one NUMA node"
            most = max(map(len, rooms), default=0)
            return f"host {host.name} has {most} CPUs {where} left to pin nodes to, the node needs {wish.count}"
        free -= set(sorted(room)[: wish.count])
    return ""


def taken_by_host(nodes: Iterable[Node], moves: Iterable[Move]) -> dict[str, dict[int, str]]:
    """The CPUs that are pins, also of nodes that are just moving there, by host, and whose they are."""
    found = dict[str, dict[int, str]]()
    for node in nodes:
        if node.pin:
            found.setdefault(node.host, {}).update(dict.fromkeys(node.pin.cpus, node.name))
    for move in moves:
        if move.pin:
            found.setdefault(move.destination, {}).update(dict.fromkeys(move.pin.cpus, move.node))
    return found


def taken_on(host: str, nodes: Iterable[Node], moves: Iterable[Move]) -> dict[int, str]:
    """Those of one host."""
    return taken_by_host(nodes, moves).get(host, {})


def require_pinning(node: str, flavor: Flavor, hosts: Sequence[Host]) -> None:
    """Refused when the node is to be pinned and none of these hosts pins any."""
    if flavor.pin and hosts and not any(host.facts and host.facts.cpus for host in hosts):
        _facts(node, hosts[0])


def pin_at_start(node: str, flavor: Flavor, host: Host, taken: Mapping[int, str]) -> Pin | None:
    """The pin of a new node: the CPUs that its file names, or free ones. Refused with the reason."""
    want = flavor.pin
    if want is None:
        return None
    facts = _facts(node, host)
    if want.memory is not None and want.memory not in facts.numa:
        why = f"it has {format_cpu_list(facts.numa)}"
        raise _refused(node, host, f"it has no NUMA node {want.memory}: {why}")
    if not want.cpus:
        return _free(node, want, pinned_count(flavor), host, facts, taken, [want.memory])
    if absent := set(want.cpus) - set(facts.cpus):
        raise _refused(node, host, f"it has no CPU {format_cpu_list(absent)}: it has {format_cpu_list(facts.cpus)}")
    if held := [cpu for cpu in want.cpus if taken.get(cpu, node) != node]:
        raise _refused(node, host, f"CPU {held[0]} is {taken[held[0]]}'s")
    return Pin(cpus=want.cpus, memory=want.memory)


def pin_after_move(node: Node, want: PinSpec | None, host: Host, taken: Mapping[int, str]) -> Pin | None:
    """The pin of a node where it moves: as many CPUs, the same ones where they are free, and all of one NUMA node if
    its memory is bound to one. Refused with the reason."""
    if node.pin is None:
        return None
    facts, count, bound = _facts(node.name, host), len(node.pin.cpus), node.pin.memory
    free = {cpu for cpu in facts.cpus if taken.get(cpu, node.name) == node.name}
    if set(node.pin.cpus) <= free and (bound is None or set(node.pin.cpus) <= set(facts.numa.get(bound, ()))):
        return node.pin
    memory = [bound, *(number for number in facts.numa if number != bound)] if bound is not None else [None]
    return _free(node.name, want or PinSpec(), count, host, facts, taken, memory)


def _free(
    node: str,
    want: PinSpec,
    count: int,
    host: Host,
    facts: HostFacts,
    taken: Mapping[int, str],
    memory: Iterable[int | None],
) -> Pin:
    """So many free CPUs of one of the NUMA nodes; without one, of one all the same if that has room."""
    free = [cpu for cpu in facts.cpus if taken.get(cpu, node) == node]
    for number in memory:
        if number is None:
            near = [[cpu for cpu in free if cpu in cpus] for cpus in facts.numa.values()]
            room = next((cpus for cpus in near if len(cpus) >= count), free)
        else:
            room = [cpu for cpu in free if cpu in facts.numa.get(number, ())]
        if len(room) >= count:
            return Pin(cpus=tuple(room[:count]), memory=number)
    where = " of one NUMA node" if want.memory is not None else ""
    held = "".join(f"; {name} has {format_cpu_list(cpus)}" for name, cpus in _by_node(taken).items())
    raise _refused(
        node,
        host,
        f"it has {len(free)} free of its CPUs {format_cpu_list(facts.cpus)}, the node needs {count}{where}{held}",
    )


def _by_node(taken: Mapping[int, str]) -> dict[str, list[int]]:
    found = dict[str, list[int]]()
    for cpu, name in taken.items():
        found.setdefault(name, []).append(cpu)
    return found


def _facts(node: str, host: Host) -> HostFacts:
    if host.facts is None or not host.facts.cpus:
        raise Refused(
            Code.UNSUPPORTED,
            f"{node} cannot be pinned on host {host.name}",
            "nothing there pins processes to CPUs",
            "leave pin out of the cluster's file; wherry doctor",
        )
    return host.facts


def _refused(node: str, host: Host, why: str) -> Refused:
    return Refused(Code.NO_CAPACITY, f"{node} cannot be pinned on host {host.name}", why, "wherry node list")
