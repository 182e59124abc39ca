"""Emptying a host, putting back what was on it, and declaring a host lost.

Invariant: which nodes a drain took off a host is kept as flags of the host (`took NODE`), written before they move,
so a restore finds them also after the daemon was killed in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from wherry.base.errors import Code, Refused, WherryError
from wherry.cluster.lookup import DRAINED, LOST, find_host
from wherry.model.objects import Node, NodeState, Operation
from wherry.schedule.placement import NodeNeed, Used, choose_host, used_by
from wherry.service.bulk_moves import move_many
from wherry.service.claims import FABRIC, Claims, cluster_claim, host_claim, node_claim
from wherry.service.context import ServiceContext
from wherry.service.operations import Task

_TOOK = "took "
_LOOK = 0.1
"""Seconds between two looks whether the moves to a host that is drained have ended."""


class Drains:
    """Drain, loss and restore of hosts."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def drain(self, host: str) -> Operation:
        """Marks the host, then moves every node off it, also those that were on their way there. A host that is drained
        already is emptied again. WRONG_STATE while tiles run there, which cannot leave it."""
        find_host(self._context.hosts(), host)
        self._context.refuse_tiles(f"host {host} cannot be drained", [host])
        self._destinations(host)
        was_drained = self._context.store.host_flag(host, DRAINED)

        def body(task: Task) -> dict[str, Any]:
            self._context.store.set_host_flag(host, DRAINED, True)
            try:
                self._await_arrivals(task, host)
                targets = self._claimed_destinations(task, host)
            except WherryError:
                self._context.store.set_host_flag(host, DRAINED, was_drained)
                raise
            self._context.store.add_event("host.drain", host, f"{host} takes no more nodes")
            for node in targets:
                self._context.store.set_host_flag(host, _TOOK + node.name, True)
            return {"host": host, "moves": self._move_all(task, f"host {host} is drained in part", targets)}

        return self._start("host drain", host, self._movable(host), body)

    def restore(self, host: str) -> Operation:
        """Lets the host take nodes again and moves back those that a drain took off it and that still exist."""
        find_host(self._context.hosts(), host)
        store = self._context.store
        taken = [flag.removeprefix(_TOOK) for flag in store.host_flags(host) if flag.startswith(_TOOK)]
        nodes = [node for node in store.nodes() if node.name in taken and node.host != host]

        def body(task: Task) -> dict[str, Any]:
            self._readmit(host)
            store.set_host_flag(host, DRAINED, False)
            store.add_event("host.restore", host, f"{host} takes nodes again")
            moves = self._move_all(task, f"host {host} is restored in part", {node: host for node in nodes})
            for name in taken:
                store.set_host_flag(host, _TOOK + name, False)
            return {"host": host, "moves": moves}

        return self._start("host restore", host, nodes, body)

    def declare_lost(self, host: str) -> Operation:
        """Declares that a silent host will not come back, so that everything else goes on without it.

        Its nodes are lost, and their jobs end; moves to it are taken back, moves from it finished where their copy is
        whole; clusters can be removed and repaired. What is ended elsewhere on its account is remembered, and ended
        there first when the host is restored. Refused while the host answers: then draining is the way.
        """
        managers, store = self._context.require_managers(), self._context.store
        found = find_host(self._context.hosts(), host)
        if not found.down:
            remedy = f"wherry host drain {host}"
            raise Refused(Code.WRONG_STATE, f"host {host} answers", "only a silent host can be declared lost", remedy)

        def body(_task: Task) -> dict[str, Any]:
            managers.fabric.set_lost(host, True)
            store.set_host_flag(host, LOST, True)
            text = f"{host} is declared lost: a copy that still runs there is the administrator's to stop"
            store.add_event("host.lost", host, text)
            return {"host": host, "nodes": [node.name for node in store.nodes() if node.host == host]}

        return self._start("host lost", host, [], body)

    def _readmit(self, host: str) -> None:
        """Takes back that a host is lost, once it answers. What must not run there is ended before anything else."""
        managers, store = self._context.require_managers(), self._context.store
        if not store.host_flag(host, LOST):
            return
        managers.fabric.set_lost(host, False)
        try:
            if not managers.fabric.reachable(host):
                remedy = "repeat this when it answers"
                raise Refused(Code.HOST_DOWN, f"host {host} is still silent", "it stays declared lost", remedy)
            for driver in managers.drivers.values():
                for node, where in driver.orphans():
                    if where == host:
                        driver.end_orphan(node, host)
        except Exception:
            managers.fabric.set_lost(host, True)
            raise
        store.set_host_flag(host, LOST, False)

    def _await_arrivals(self, task: Task, host: str) -> None:
        """Waits until no move to the host, which admits no more, is under way; CANCELLED."""
        moves, told = self._context.require_managers().moves, set[str]()
        while arriving := [move for move in moves.unfinished(host) if self._claimed(move.node)]:
            for move in arriving:
                if move.id not in told:
                    task.progress(f"waiting for {move.node}, which is on its way to {host}")
                    told.add(move.id)
            task.check()
            time.sleep(_LOOK)

    def _claimed(self, node: str) -> bool:
        return self._context.operations.busy_with(exclusive=[node_claim(node)]) is not None

    def _claimed_destinations(self, task: Task, host: str) -> dict[Node, str]:
        """A host for each node, with the claims on nodes that arrived since the drain began. The operation that brought
        one may end a moment after its move did, and is waited for: it waits for no claim itself any more."""
        while True:
            targets = self._destinations(host)
            try:
                task.claim(Claims.of(*_claims(targets)))
                return targets
            except Refused:
                task.check()
                time.sleep(_LOOK)

    def _start(self, kind: str, host: str, nodes: list[Node], body: Callable[[Task], dict[str, Any]]) -> Operation:
        shared, exclusive = _claims(nodes)
        return self._context.operations.start(
            kind, host, body, shared={FABRIC, *shared}, exclusive={host_claim(host), *exclusive}
        )

    def _movable(self, host: str) -> list[Node]:
        """The nodes on a host; a lost one has nothing to move, `up` repairs it elsewhere."""
        running = (NodeState.RUNNING, NodeState.MOVING)
        return [node for node in self._context.store.nodes() if node.host == host and node.state in running]

    def _destinations(self, host: str) -> dict[Node, str]:
        """A host for each node, all of them found before the first one moves. NO_CAPACITY when one finds none."""
        store, hosts = self._context.store, self._context.hosts()
        used, targets = used_by(store.nodes(), store.moves(unfinished=True)), dict[Node, str]()
        for node in self._movable(host):
            target = choose_host(node, hosts, used)
            used[target] = used.get(target, Used()).plus(NodeNeed(node.cpus, node.memory))
            targets[node] = target
        return targets

    def _move_all(self, task: Task, partly: str, targets: dict[Node, str]) -> list[dict[str, Any]]:
        named = {node.name: target for node, target in targets.items()}
        return move_many(self._context.require_managers().moves, task, named, partly)


def _claims(nodes: Iterable[Node]) -> tuple[set[str], set[str]]:
    """What moving these nodes shares, and what it claims exclusively."""
    found = list(nodes)
    return {cluster_claim(node.cluster) for node in found}, {node_claim(node.name) for node in found}
