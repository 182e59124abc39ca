"""Draining a host, restoring it, and declaring it lost.

Invariant: the nodes that a drain takes off a host are flags of the host (`took NODE`), written before the moves begin,
so that a restore finds them also after the daemon was killed in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from wherry.base.errors import Code, Refused
from wherry.cluster.lookup import DRAINED, LOST, TOOK, find_host
from wherry.model.records import Node, NodeState, Operation
from wherry.schedule.placement import NodeNeed, Used, choose_host, used_by
from wherry.service.bulk_moves import move_many
from wherry.service.claims import FABRIC, Claims, cluster_claim, host_claim, node_claim
from wherry.service.context import ServiceContext
from wherry.service.operations import Task

_POLL_SECONDS = 0.1
"""Pause between two checks whether the moves to a host that is being drained have ended."""


class HostCommands:
    """The commands that drain, restore and declare lost a host."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def drain(self, host: str) -> Operation:
        """Marks the host as drained, then moves all its nodes off it, including those whose move to it was under way.
        Repeating it on a drained host empties it again. WRONG_STATE while tiles run there: they cannot be moved."""
        find_host(self._context.hosts(), host)
        self._context.refuse_tiles(f"host {host} cannot be drained", [host])
        self._destinations(host)

        def body(task: Task) -> dict[str, Any]:
            was_drained = self._context.store.host_flag(host, DRAINED)
            self._context.store.set_host_flag(host, DRAINED, True)
            try:
                self._await_arrivals(task, host)
                targets = self._claimed_destinations(task, host)
            except Exception:
                self._context.store.set_host_flag(host, DRAINED, was_drained)
                raise
            self._context.store.add_event("host.drain", host, f"{host} accepts no more nodes")
            for node in targets:
                self._context.store.set_host_flag(host, TOOK + node.name, True)
            return {"host": host, "moves": self._move_all(task, f"host {host} is drained in part", targets)}

        return self._start("host drain", host, self._movable(host), body)

    def restore(self, host: str) -> Operation:
        """Lets the host accept nodes again, and moves back those that a drain took off it and that still exist."""
        find_host(self._context.hosts(), host)
        store = self._context.store

        def body(task: Task) -> dict[str, Any]:
            taken, nodes = self._taken(host)  # again: a drain may have ended between the request and its claim
            task.claim(Claims.of(*_claims(nodes)))
            self._readmit(host)
            store.set_host_flag(host, DRAINED, False)
            store.add_event("host.restore", host, f"{host} accepts nodes again")
            moves = self._move_all(task, f"host {host} is restored in part", {node: host for node in nodes})
            for name in taken:
                store.set_host_flag(host, TOOK + name, False)
            return {"host": host, "moves": moves}

        return self._start("host restore", host, self._taken(host)[1], body)

    def _taken(self, host: str) -> tuple[list[str], list[Node]]:
        """The names that drains noted at the host, and those of these nodes that are elsewhere."""
        store = self._context.store
        names = [flag.removeprefix(TOOK) for flag in store.host_flags(host) if flag.startswith(TOOK)]
        return names, [node for node in store.nodes() if node.name in names and node.host != host]

    def declare_lost(self, host: str) -> Operation:
        """Declares a silent host lost, so that nothing waits for it any more.

        Its nodes become lost and their jobs end; moves to it are taken back, moves from it are finished if the
        destination's copy is complete; clusters can be removed and repaired. Copies of nodes that must not run there
        any more are recorded, and ended first when the host is restored. WRONG_STATE while the host answers.
        """
        managers, store = self._context.require_managers(), self._context.store
        self._require_silent(host)

        def body(_task: Task) -> dict[str, Any]:
            self._require_silent(host)  # again: it may have come back before the claims were held
            store.set_host_flag(host, LOST, True)
            managers.fabric.set_lost(host, True)
            text = f"{host} is declared lost: the administrator must stop copies of nodes that still run there"
            store.add_event("host.lost", host, text)
            return {"host": host, "nodes": [node.name for node in store.nodes() if node.host == host]}

        return self._start("host lost", host, [], body)

    def _require_silent(self, host: str) -> None:
        if not find_host(self._context.hosts(), host).down:
            remedy = f"wherry host drain {host}"
            raise Refused(Code.WRONG_STATE, f"host {host} answers", "only a silent host can be declared lost", remedy)

    def _readmit(self, host: str) -> None:
        """Ends the loss of a host that answers again. Copies of nodes that must not run there are ended first."""
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
        """Waits until no other operation moves a node to the host, which admits no further moves. CANCELLED."""
        moves, reported = self._context.require_managers().moves, set[str]()
        while arriving := [move for move in moves.unfinished(host) if self._claimed_by_other(task, move.node)]:
            for move in arriving:
                if move.id not in reported:
                    task.progress(f"waiting for {move.node}, which is being moved to {host}")
                    reported.add(move.id)
            task.check()
            time.sleep(_POLL_SECONDS)

    def _claimed_by_other(self, task: Task, node: str) -> bool:
        return self._context.operations.busy_with(exclusive=[node_claim(node)], besides=task.operation.id) is not None

    def _claimed_destinations(self, task: Task, host: str) -> dict[Node, str]:
        """A host for each node, with claims on the nodes that arrived since the drain began. The operation that moved
        one here may hold its claim a moment longer than its move took. Waiting for that cannot deadlock: the operation
        itself waits for no claim any more."""
        while True:
            targets = self._destinations(host)
            try:
                task.claim(Claims.of(*_claims(targets)))
                return targets
            except Refused:
                task.check()
                time.sleep(_POLL_SECONDS)

    def _start(self, kind: str, host: str, nodes: list[Node], body: Callable[[Task], dict[str, Any]]) -> Operation:
        shared, exclusive = _claims(nodes)
        return self._context.operations.start(
            kind, host, body, shared={FABRIC, *shared}, exclusive={host_claim(host), *exclusive}
        )

    def _movable(self, host: str) -> list[Node]:
        """The nodes on a host that can be moved; a lost node is repaired by `up`."""
        running = (NodeState.RUNNING, NodeState.MOVING)
        return [node for node in self._context.store.nodes() if node.host == host and node.state in running]

    def _destinations(self, host: str) -> dict[Node, str]:
        """A host for each node, found before any of them moves. NO_CAPACITY when one has none."""
        store, hosts = self._context.store, self._context.hosts()
        used, targets = used_by(store.nodes(), store.moves(unfinished=True)), dict[Node, str]()
        for node in self._movable(host):
            target = choose_host(node, hosts, used)
            used[target] = used.get(target, Used()).plus(NodeNeed(node.cpus, node.memory))
            targets[node] = target
        return targets

    def _move_all(self, task: Task, partly: str, targets: dict[Node, str]) -> list[dict[str, Any]]:
        by_name = {node.name: target for node, target in targets.items()}
        return move_many(self._context.require_managers().moves, task, by_name, partly)


def _claims(nodes: Iterable[Node]) -> tuple[set[str], set[str]]:
    """The shared and the exclusive claims of moving these nodes."""
    moved = list(nodes)
    return {cluster_claim(node.cluster) for node in moved}, {node_claim(node.name) for node in moved}
