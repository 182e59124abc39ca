"""Moves of nodes: predicts, checks, runs, and recovers those that a killed daemon left.

Invariant: a node takes part in one move at a time, and an unfinished row exists for as long as two places do. Several
nodes move at once, each in the caller's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from wherry.base.clock import now
from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.base.ids import new_id
from wherry.base.units import format_duration, format_rate
from wherry.cluster.clusters import Progress, never, quiet
from wherry.cluster.lookup import find_cluster, find_node
from wherry.cluster.placements import Placements
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.objects import ClusterState, Move, Node, NodeState, Phase, Prediction
from wherry.move.faults import parse_fault
from wherry.move.forecast import forecast
from wherry.move.link_admission import LinkAdmission, LinkPath, link_path
from wherry.move.state_machine import MoveEndpoints, MoveStateMachine
from wherry.move.validation import check_move
from wherry.node.protocol import STANDS_AT_MOST, NodeDriver
from wherry.schedule.routes import Hop
from wherry.store.store import Store


class Moves:
    """The live migrations of an instance's nodes."""

    def __init__(self, store: Store, fabric: Fabric, drivers: dict[str, NodeDriver], places: Placements) -> None:
        self._store = store
        self._fabric = fabric
        self._drivers = drivers
        self._places = places
        self._lock = threading.Lock()
        self._turns = LinkAdmission()
        self._running: set[str] = set()
        """Ids of the moves that a thread of this process is at."""

    def check(self, node: str, host: str, way: MigrationParameters | None = None) -> None:
        """Refused with the reason when the node may not move to the host in this way. Changes nothing."""
        check_move(self._store, self._fabric, self._drivers, self._places, node, host, way)

    def crossing(self, node: str, host: str, bandwidth: int | None = None) -> LinkPath:
        """The links between node and host. Refused when one of them has less than `bandwidth` bit/s, or when that, or
        what they leave to moves, is less than what moves the node can keep to."""
        found = find_node(self._store, node)
        over = link_path(self._fabric.spec, found.host, host, bandwidth)
        if over.rate is not None and (why := self._drivers[found.kind].rate_obstacle(over.rate)):
            what = f"the move of {node} cannot keep to {format_rate(over.rate)}"
            remedy = "give a larger --bandwidth" if bandwidth else "give the link a larger bandwidth"
            raise Refused(Code.UNSUPPORTED, what, why, remedy)
        return over

    def predict(self, node: str, host: str, bandwidth: int | None = None, max_rounds: int | None = None) -> Prediction:
        """What the move would cost, sending at most `bandwidth` bit/s. Refused when it may not be made; changes
        nothing."""
        self.check(node, host)
        found = find_node(self._store, node)
        over = self.crossing(node, host, bandwidth)
        mover = self._ends(found, found.host, host).mover()
        size, overhead = mover.predict()
        alike = {other.name for other in self._store.nodes() if other.kind == found.kind}
        past = [m for m in self._store.moves() if m.node in alike and self._crossed(m) == set(over.budgets)]
        return forecast(size, overhead, mover.can_round() and max_rounds != 0, past, over.rate)

    def run(
        self,
        node: str,
        host: str,
        progress: Progress = quiet,
        cancelled: Callable[[], bool] = never,
        max_rounds: int | None = None,
        fault: str | None = None,
        bandwidth: int | None = None,
        way: MigrationParameters | None = None,
    ) -> Move:
        """Moves the node, sending at most `bandwidth` bit/s (None: what the links on its way leave to moves).

        Refused before anything is changed; Failed when it was taken back, the node running on.
        """
        strikes = parse_fault(fault)
        predicted = self._predicted(node, host, bandwidth, max_rounds)
        over = self.crossing(node, host, bandwidth)
        if predicted is not None and not predicted.rounds and (way or MigrationParameters()).mode != "post-copy":
            self.check_standing(node, predicted.downtime)
        machine = self._begin(node, host, progress, cancelled, predicted, over, way)
        try:
            return machine.run(strikes, max_rounds)
        finally:
            with self._lock:
                self._running.discard(machine.move.id)

    def incoming(self, host: str) -> list[Move]:
        """Moves to a host that a thread is at; all of them, for who has marked the host as drained before."""
        with self._lock:  # who has found the host open has written his row
            found = [move for move in self._store.moves(unfinished=True) if move.id in self._running]
        return [move for move in found if move.destination == host]

    def check_standing(self, node: str, downtime: float) -> None:
        """Refused when the connections of a node would not outlast its standing still for so many seconds."""
        if downtime > STANDS_AT_MOST:
            what = f"node {node} would stand still for {format_duration(downtime)}"
            why = f"its connections outlast {format_duration(STANDS_AT_MOST)} of silence"
            raise Refused(Code.UNSUPPORTED, what, why, "give a larger --bandwidth, or the link one")

    def left(self) -> list[Move]:
        """Moves that nobody is at and that are neither finished nor taken back, though both hosts answer now."""
        with self._lock:
            found = [move for move in self._store.moves(unfinished=True) if move.id not in self._running]
        return [move for move in found if all(map(self._fabric.reachable, (move.source, move.destination)))]

    def recover(self, progress: Progress = quiet, only: str | None = None) -> None:
        """Finishes every committed move that nobody is at, takes back every other; or does so with one alone.

        Reports what cannot be recovered now; its row stays unfinished for the next time.
        """
        for id in [move.id for move in self._store.moves(unfinished=True) if only in (None, move.id)]:
            with self._lock:
                move = self._store.move(id)
                if move is None or move.ended or id in self._running:
                    continue
                self._running.add(id)
            try:
                self._recover(move, progress)
            except Exception as error:
                progress(f"move {id} of {move.node}: {error}")
            finally:
                with self._lock:
                    self._running.discard(id)

    def _recover(self, move: Move, progress: Progress) -> None:
        node = self._store.node(move.node)
        if node is None:
            self._store.put_move(move.model_copy(update={"phase": Phase.ROLLED_BACK, "ended": now()}))
            return
        progress(f"{move.node}: {'finishing' if move.committed else 'taking back'} the move to {move.destination}")
        home = node.model_copy(update={"host": move.source})
        ends = self._ends(home, move.source, move.destination)
        machine = MoveStateMachine(self._store, self._fabric, ends, move, home, progress, never)
        cause = Failed(Code.FAILED, "the daemon ended during the move", "", "move it again")
        if move.committed or machine.roll_back(cause) is None:
            machine.finish()

    def _begin(
        self,
        name: str,
        host: str,
        progress: Progress,
        cancelled: Callable[[], bool],
        predicted: Prediction | None,
        over: LinkPath,
        way: MigrationParameters | None,
    ) -> MoveStateMachine:
        """Checks, and writes the rows that make the node's second place known."""
        self.check(name, host, way)  # a host that is silent holds up nobody else
        with self._lock:
            node = check_move(self._store, self._fabric, self._drivers, self._places, name, host, way, again=True)
            ends = self._ends(node, node.host, host, way)
            move = Move(
                id=new_id("mv"),
                node=name,
                cluster=node.cluster,
                source=node.host,
                destination=host,
                phase=Phase.PREPARE,
                created=now(),
                predicted=predicted,
            )
            self._store.put_move(move)
            if find_cluster(self._store, node.cluster).state == ClusterState.REMOVING:
                self._store.put_move(move.model_copy(update={"phase": Phase.ROLLED_BACK, "ended": now()}))
                raise Refused(Code.WRONG_STATE, f"cluster {node.cluster} is being removed", "", "wherry op list")
            moving = node.model_copy(update={"state": NodeState.MOVING})
            self._store.put_node(moving)
            self._running.add(move.id)
        self._store.add_event("move.begin", name, f"{name} moves from {node.host} to {host}", move=move.id)
        return MoveStateMachine(self._store, self._fabric, ends, move, moving, progress, cancelled, over, self._turns)

    def _predicted(self, node: str, host: str, bandwidth: int | None, max_rounds: int | None) -> Prediction | None:
        """The prediction for the record; a node that cannot be measured may move all the same."""
        try:
            return self.predict(node, host, bandwidth, max_rounds)
        except (Failed, LostContact):
            return None

    def _crossed(self, move: Move) -> set[Hop] | None:
        """The links with a bandwidth that a past move crossed; None when one of its hosts is no more."""
        known = {host.name for host in self._fabric.spec.hosts}
        if not {move.source, move.destination} <= known:
            return None
        return set(link_path(self._fabric.spec, move.source, move.destination).budgets)

    def _ends(self, node: Node, source: str, destination: str, way: MigrationParameters | None = None) -> MoveEndpoints:
        places = self._places
        return MoveEndpoints(
            self._drivers[node.kind],
            (places.port(node, source), places.port(node, destination)),
            (places.place(node, source), places.place(node, destination)),
            way,
        )
