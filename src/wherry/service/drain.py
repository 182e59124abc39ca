"""Emptying a host and putting back what was on it.

Invariant: which nodes a drain took off a host is kept as flags of the host (`took NODE`), written before they move,
so a restore finds them also after the daemon was killed in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from wherry.base.errors import WherryError
from wherry.cluster.lookup import DRAINED, find_host
from wherry.model.objects import Node, NodeState, Operation
from wherry.schedule.place import NodeNeed, Used, choose, used_by
from wherry.service.acts import FABRIC, cluster_claim, node_claim
from wherry.service.cell import Cell
from wherry.service.operations import Task
from wherry.service.together import move_together

_TOOK = "took "
_LOOK = 0.1
"""Seconds between two looks whether the moves to a host that is drained have ended."""


class Drains:
    """Drain and restore of hosts."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def drain(self, host: str) -> Operation:
        """Marks the host, then moves every node off it, also those that were on their way there. A host that is drained
        already is emptied again. WRONG_STATE while tiles run there, which cannot leave it."""
        find_host(self._cell.hosts(), host)
        self._cell.refuse_tiles(f"host {host} cannot be drained", [host])
        self._destinations(host)
        was_drained = self._cell.store.host_flag(host, DRAINED)

        def body(task: Task) -> dict[str, Any]:
            self._cell.store.set_host_flag(host, DRAINED, True)
            try:
                self._let_come(task, host)
                targets = self._destinations(host)
            except WherryError:
                self._cell.store.set_host_flag(host, DRAINED, was_drained)
                raise
            self._cell.store.add_event("host.drain", host, f"{host} takes no more nodes")
            for node in targets:
                self._cell.store.set_host_flag(host, _TOOK + node.name, True)
            return {"host": host, "moves": self._move_all(task, f"host {host} is drained in part", targets)}

        return self._start("host drain", host, self._movable(host), body)

    def restore(self, host: str) -> Operation:
        """Lets the host take nodes again and moves back those that a drain took off it and that still exist."""
        find_host(self._cell.hosts(), host)
        store = self._cell.store
        taken = [flag.removeprefix(_TOOK) for flag in store.host_flags(host) if flag.startswith(_TOOK)]
        nodes = [node for node in store.nodes() if node.name in taken and node.host != host]

        def body(task: Task) -> dict[str, Any]:
            store.set_host_flag(host, DRAINED, False)
            store.add_event("host.restore", host, f"{host} takes nodes again")
            moves = self._move_all(task, f"host {host} is restored in part", {node: host for node in nodes})
            for name in taken:
                store.set_host_flag(host, _TOOK + name, False)
            return {"host": host, "moves": moves}

        return self._start("host restore", host, nodes, body)

    def _let_come(self, task: Task, host: str) -> None:
        """Until nothing is on its way to the host, which takes no more; CANCELLED."""
        told = set[str]()
        while coming := self._cell.need_domain().moves.coming(host):
            for move in coming:
                if move.id not in told:
                    task.progress(f"waiting for {move.node}, which is on its way to {host}")
                    told.add(move.id)
            task.check()
            time.sleep(_LOOK)

    def _start(self, kind: str, host: str, nodes: list[Node], body: Callable[[Task], dict[str, Any]]) -> Operation:
        shared = {FABRIC} | {cluster_claim(node.cluster) for node in nodes}
        exclusive = {f"host {host}"} | {node_claim(node.name) for node in nodes}
        return self._cell.operations.start(kind, host, body, shared=shared, exclusive=exclusive)

    def _movable(self, host: str) -> list[Node]:
        """The nodes on a host; a lost one has nothing to move, `up` repairs it elsewhere."""
        running = (NodeState.RUNNING, NodeState.MOVING)
        return [node for node in self._cell.store.nodes() if node.host == host and node.state in running]

    def _destinations(self, host: str) -> dict[Node, str]:
        """A host for each node, all of them found before the first one moves. NO_CAPACITY when one finds none."""
        store, hosts = self._cell.store, self._cell.hosts()
        used, targets = used_by(store.nodes(), store.moves(unfinished=True)), dict[Node, str]()
        for node in self._movable(host):
            target = choose(node, hosts, used)
            used[target] = used.get(target, Used()).plus(NodeNeed(node.cpus, node.memory))
            targets[node] = target
        return targets

    def _move_all(self, task: Task, partly: str, targets: dict[Node, str]) -> list[dict[str, Any]]:
        named = {node.name: target for node, target in targets.items()}
        return move_together(self._cell.need_domain().moves, task, named, partly)
