"""Draining a host, at once or at an announced time, restoring it, and declaring it lost.

Invariant: the nodes that a drain takes off a host are flags of the host (`took NODE`), written before the moves begin,
so that a restore finds them also after the daemon was killed in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from wherry.base.clock import now
from wherry.base.errors import Code, Failed, Refused
from wherry.base.moments import moment
from wherry.cluster.lookup import ANNOUNCED, DRAINED, DRAINED_NODE, LOST, Announced, find_cluster, find_host
from wherry.model.records import Host, Node, NodeState, Operation
from wherry.move.validation import check_alike
from wherry.schedule.placement import NodeNeed, Used, choose_host, used_by
from wherry.service.bulk_moves import move_many
from wherry.service.claims import FABRIC, Claims, cluster_claim, host_claim, node_claim
from wherry.service.context import Managers, ServiceContext
from wherry.service.task import Task
from wherry.store import Store

_POLL_SECONDS = 0.1
"""Pause between two checks whether the moves to a host that is being drained have ended."""


class HostCommands:
    """The commands that drain, restore and declare lost a host."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def drain(self, host: str, why: str = "", partly: bool = False) -> Operation:
        """Marks the host as drained, then moves all its nodes off it, including nodes whose move to it was under way.
        Repeating it on a drained host empties it again. Nodes for which there is no room are NO_CAPACITY, and nothing
        moves; with `partly` all others do, and it is PARTLY_DONE. `why` is for the event. WRONG_STATE while a
        component uses it."""
        find_host(self._context.hosts(), host)
        self._context.refuse_use_by_components(f"host {host} cannot be drained", [host])
        self._destinations(host, partly)

        def body(task: Task) -> dict[str, Any]:
            was_drained = self._context.store.host_flag(host, DRAINED)
            self._context.store.set_host_flag(host, DRAINED, True)
            try:
                self._await_arrivals(task, host)
                targets = self._claimed_destinations(task, host, partly)
            except Exception:
                self._context.store.set_host_flag(host, DRAINED, was_drained)
                raise
            stay = sorted({node.name for node in self._movable(host)} - {node.name for node in targets})
            text = _described(f"{host} accepts no more nodes", why, {n.name: to for n, to in targets.items()}, stay)
            self._context.store.add_event("host.drain", host, text)
            for node in targets:
                self._context.store.set_host_flag(host, DRAINED_NODE + node.name, True)
            moves = self._move_all(task, f"host {host} is drained in part", targets)
            if stay:
                what, reason = f"host {host} is drained in part", f"no host can take {', '.join(stay)}"
                raise Failed(Code.PARTLY_DONE, what, reason, "wherry host capacity")
            return {"host": host, "moves": moves}

        return self._start("host drain", host, self._movable(host), body)

    def announce_drain(self, host: str, at: float, why: str = "announced maintenance") -> Operation:
        """Has the host be drained at a time (seconds since the epoch), in place of an earlier announcement; a
        restore of the host takes that back. USAGE when that time is over."""
        find_host(self._context.hosts(), host)
        if at <= now():
            what = f"host {host} cannot be drained at {moment(at)}"
            raise Refused(Code.USAGE, what, f"it is {moment(now())}", f"wherry host drain {host}")

        def body(_task: Task) -> dict[str, Any]:
            self.note_announced(host, Announced(at, why))
            return {"host": host, "at": at, "moves": []}

        return self._context.operations.start(
            "host drain", f"{host} at {moment(at)}", body, shared={FABRIC}, exclusive={host_claim(host)}
        )

    def note_announced(self, host: str, coming: Announced) -> None:
        """Has the host be drained at that time, in place of an earlier announcement."""
        store = self._context.store
        set_announced(store, host, coming)
        store.add_event("host.drain-announced", host, f"{host} is drained at {moment(coming.at)}: {coming.why}")

    def restore(self, host: str) -> Operation:
        """Lets the host accept nodes again, and moves back the nodes that a drain took off it, if they still exist."""
        find_host(self._context.hosts(), host)
        store = self._context.store

        def body(task: Task) -> dict[str, Any]:
            taken, nodes = self._taken(host)  # again: a drain may have ended between the request and its claim
            task.claim(Claims.of(*_claims(nodes)))
            self._readmit(host)
            store.set_host_flag(host, DRAINED, False)
            set_announced(store, host, None)
            store.add_event("host.restore", host, f"{host} accepts nodes again")
            moves = self._move_all(task, f"host {host} is restored in part", {node: host for node in nodes})
            for name in taken:
                store.set_host_flag(host, DRAINED_NODE + name, False)
            return {"host": host, "moves": moves}

        return self._start("host restore", host, self._taken(host)[1], body)

    def _taken(self, host: str) -> tuple[list[str], list[Node]]:
        """The names that drains noted at the host, and those of these nodes that are elsewhere."""
        store = self._context.store
        names = [flag.removeprefix(DRAINED_NODE) for flag in store.host_flags(host) if flag.startswith(DRAINED_NODE)]
        return names, [node for node in store.nodes() if node.name in names and node.host != host]

    def declare_lost(self, host: str) -> Operation:
        """Declares a silent host lost, so that nothing waits for it any more.

        Its nodes become lost and their jobs end; moves to it are rolled back, moves from it are finished if the
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

    def note_loss(self, host: str) -> None:
        """As `declare_lost` for a host that a batch system took away: it may answer, but is nobody's of ours. Its nodes
        become lost when the fabric does not reach it any more."""
        self._context.store.set_host_flag(host, LOST, True)

    def end_loss(self, host: str) -> None:
        """The reverse, when the fabric has it again, and has removed all that was there."""
        managers, store = self._context.require_managers(), self._context.store
        if store.host_flag(host, LOST):
            self._end_orphans(managers, host)
            store.set_host_flag(host, LOST, False)

    @staticmethod
    def _end_orphans(managers: Managers, host: str) -> None:
        for driver in managers.drivers.values():
            for node, where in driver.orphans():
                if where == host:
                    driver.end_orphan(node, host)

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
            self._end_orphans(managers, host)
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
        return (
            self._context.operations.conflicting_operation(exclusive=[node_claim(node)], besides=task.operation.id)
            is not None
        )

    def _claimed_destinations(self, task: Task, host: str, partly: bool) -> dict[Node, str]:
        """A host for each node, with claims on the nodes that arrived since the drain began. The operation that moved
        one here may hold its claim a moment longer than its move took. Waiting for that cannot deadlock: the operation
        itself waits for no claim any more."""
        while True:
            targets = self._destinations(host, partly)
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

    def _destinations(self, host: str, partly: bool) -> dict[Node, str]:
        """A host for each node, found before any of them moves: one with room on which the node can run. NO_CAPACITY
        when one has none; with `partly` it is left out."""
        store, hosts = self._context.store, self._context.hosts()
        used, targets = used_by(store.nodes(), store.moves(unfinished=True)), dict[Node, str]()
        for node in self._movable(host):
            try:
                target = self._destination(node, hosts, used)
            except Refused as error:
                if partly and error.code is Code.NO_CAPACITY:
                    continue
                raise
            used[target] = used.get(target, Used()).plus(NodeNeed.of(node))
            targets[node] = target
        return targets

    def _destination(self, node: Node, hosts: list[Host], used: Mapping[str, Used]) -> str:
        fabric, store = self._context.require_managers().fabric, self._context.store
        source, cluster = find_host(hosts, node.host), find_cluster(store, node.cluster)
        left, unlike = hosts, list[str]()
        while True:
            try:
                target = find_host(left, choose_host(node, left, used))
            except Refused as error:
                why = "; ".join([*unlike, error.why])
                raise Refused(error.code, error.what, why, error.next) from None
            try:
                check_alike(fabric, cluster, node, source, target)
            except Refused as error:
                unlike.append(f"not {target.name}: {error.why}")
                left = [host for host in left if host.name != target.name]
            else:
                return target.name

    def _move_all(self, task: Task, partly: str, targets: dict[Node, str]) -> list[dict[str, Any]]:
        by_name = {node.name: target for node, target in targets.items()}
        return move_many(self._context.require_managers().moves, task, by_name, partly)


def set_announced(store: Store, host: str, coming: Announced | None) -> None:
    """Replaces the announced drain of a host, or takes it back. The new one is there before the old one goes."""
    old = [flag for flag in store.host_flags(host) if flag.startswith(ANNOUNCED)]
    if coming is not None:
        store.set_host_flag(host, coming.flag, True)
    for flag in old:
        if coming is None or flag != coming.flag:
            store.set_host_flag(host, flag, False)


def _described(what: str, why: str, targets: Mapping[str, str], stay: Sequence[str]) -> str:
    """`h1 accepts no more nodes (why): n1 goes to h2; n2 stays, as no host can take it`."""
    parts = [f"{node} goes to {host}" for node, host in sorted(targets.items())]
    parts += [f"{node} stays, as no host can take it" for node in stay]
    shown = what + (f" ({why})" if why else "")
    return f"{shown}: {'; '.join(parts)}" if parts else shown


def _claims(nodes: Iterable[Node]) -> tuple[set[str], set[str]]:
    """The shared and the exclusive claims of moving these nodes."""
    moved = list(nodes)
    return {cluster_claim(node.cluster) for node in moved}, {node_claim(node.name) for node in moved}
