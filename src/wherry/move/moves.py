"""Moves of nodes: plan, apply, and recovery of moves that a killed daemon left unfinished.

Invariant: a node has at most one move at a time, and an unfinished row exists while it has two placements. Several
nodes move in parallel, each in its caller's thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from wherry.base.clock import now
from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry.base.ids import new_id
from wherry.base.progress import Cancelled, Progress, never, quiet
from wherry.base.units import format_duration, format_rate
from wherry.cluster.lookup import LOST, find_cluster, find_node
from wherry.cluster.placements import Placements
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters, MoveOptions
from wherry.model.records import Cluster, Gain, Move, Node, NodeState, Phase, Prediction
from wherry.move.faults import parse_fault
from wherry.move.forecast import forecast
from wherry.move.gang import Gang
from wherry.move.link_admission import LinkAdmission, LinkPath, link_path
from wherry.move.plan import MovePlan
from wherry.move.state_machine import MoveEndpoints, MoveStateMachine
from wherry.move.validation import check_host, check_rows, check_state, find_ends
from wherry.node.protocol import LONGEST_FREEZE, NodeDriver, NodeMover
from wherry.schedule.routes import Hop
from wherry.store.store import Store

_DEFAULT = MoveOptions()
_LEARNED = 200
"""Newest moves, from which the cost of a move over the same links is learned: a thousand are kept, and to read them
all for each move would take time and memory."""
_SAMPLE = 0.1
"""Seconds for which the node's writes are sampled before it moves."""


class Moves:
    """The live migrations of an instance's nodes.

    The caller holds the node's claim (see `wherry.service.claims`). Room on hosts is shared by all moves and clusters,
    so it is taken under `Store.reserving`.
    """

    def __init__(self, store: Store, fabric: Fabric, drivers: dict[str, NodeDriver], placements: Placements) -> None:
        self._store = store
        self._fabric = fabric
        self._drivers = drivers
        self._placements = placements
        self._admission = LinkAdmission()

    def plan(
        self,
        name: str,
        host: str,
        options: MoveOptions = _DEFAULT,
        sample: float = _SAMPLE,
        partner: str = "",
        fault: str | None = None,
    ) -> MovePlan:
        """Plans the move of a node to a host, with a sample of its writes of so many seconds. Contacts both hosts,
        changes nothing. Refused with the reason. A `partner` on that host does not count there, as it leaves it.
        `fault`: see `wherry.move.faults`."""
        strikes = parse_fault(fault)
        node = find_node(self._store, name)
        source, destination = find_ends(self._store, self._fabric, node, host)
        cluster = find_cluster(self._store, node.cluster)
        check_state(node, cluster)
        driver = self._drivers[node.kind]
        here, there = (self._placements.placement(node, end.name, cluster) for end in (source, destination))
        check_host(self._fabric, driver, cluster, (source, destination), (here, there))
        check_rows(self._store, node, cluster, destination, partner)
        if reason := driver.parameters_obstacle(options.parameters):
            what = f"{name} cannot be moved with these options"
            raise Refused(Code.UNSUPPORTED, what, reason, f"wherry move {name} --to HOST")
        path = self.link_path(node, destination.name, options.bandwidth)
        plan = MovePlan(node, destination, path, options, partner=partner, fault=strikes)
        try:
            predicted = self._predict(plan, driver.mover(here, there, options.parameters), sample)
        except (Failed, LostContact) as error:
            return replace(plan, unpredicted=error)
        if options.parameters.mode == "auto" and predicted.mode == "stop":
            parameters = options.parameters.model_copy(update={"mode": "stop"})
            options = options.model_copy(update={"parameters": parameters})
        if not predicted.rounds and options.parameters.mode != "post-copy":
            self.check_standing(name, predicted.downtime)
        return replace(plan, options=options, predicted=predicted)

    def apply(
        self,
        plan: MovePlan,
        progress: Progress = quiet,
        cancelled: Cancelled = never,
        operation: str = "",
        gang: Gang | None = None,
    ) -> Move:
        """Moves the node as planned, for an operation. Refused, with nothing changed, when rows no longer permit it;
        Failed when it was rolled back and the node runs on. With a `gang` it freezes when all of that do; the caller
        then has it leave that."""
        return self._admit(plan, progress, cancelled, operation).run(plan, self._admission, gang)

    def run(
        self,
        name: str,
        host: str,
        options: MoveOptions = _DEFAULT,
        progress: Progress = quiet,
        cancelled: Cancelled = never,
        fault: str | None = None,
        gang: Gang | None = None,
        gain: Gain | None = None,
    ) -> Move:
        """Plans and applies."""
        plan = replace(self.plan(name, host, options, fault=fault), gain=gain)
        return self.apply(plan, progress, cancelled, gang=gang)

    def gangs(self, targets: Mapping[str, str], most: int) -> dict[str, Gang]:
        """The gang of each node (name -> host) that freezes together with others of its cluster, `most` of them.

        None for machines, and for nodes that cross links of limited bandwidth, where one waits until another's move is
        over.
        """
        together = defaultdict[str, list[str]](list)
        for name, host in targets.items():
            node = self._store.node(name)
            known = {one.name for one in self._fabric.spec.hosts}
            if node and node.kind == "container" and {node.host, host} <= known:
                if not link_path(self._fabric.spec, node.host, host).budgets:
                    together[node.cluster].append(name)
        found: dict[str, Gang] = {}
        for names in together.values():
            for first in range(0, len(names), most):
                members = names[first : first + most]
                found |= dict.fromkeys(members, Gang(members)) if len(members) > 1 else {}
        return found

    def link_path(self, node: Node, host: str, bandwidth: int | None = None) -> LinkPath:
        """The links between node and host. Refused when one has less than `bandwidth` bit/s, or when the rate is below
        the least that the node's mover can keep to."""
        path = link_path(self._fabric.spec, node.host, host, bandwidth)
        if path.rate is not None and (why := self._drivers[node.kind].rate_obstacle(path.rate)):
            what = f"the move of {node.name} cannot be limited to {format_rate(path.rate)}"
            remedy = "give a larger --bandwidth" if bandwidth else "give the link a larger bandwidth"
            raise Refused(Code.UNSUPPORTED, what, why, remedy)
        return path

    def unfinished(self, destination: str) -> list[Move]:
        """The unfinished moves to a host: all of them, if the caller has marked the host as drained before."""
        with self._store.reserving:  # a move that was admitted before the drain has written its row
            found = self._store.moves(unfinished=True)
        return [move for move in found if move.destination == destination]

    def check_standing(self, node: str, downtime: float) -> None:
        """Refuses a downtime, in seconds, that the node's TCP connections would not survive."""
        if downtime > LONGEST_FREEZE:
            what = f"node {node} would have a downtime of {format_duration(downtime)}"
            why = f"its connections survive at most {format_duration(LONGEST_FREEZE)}"
            raise Refused(Code.UNSUPPORTED, what, why, "give a larger --bandwidth, or the link a larger bandwidth")

    def recoverable(self) -> list[Move]:
        """The unfinished moves whose hosts both answer or are declared lost. Some may still be running."""

        def settled(host: str) -> bool:
            return self._store.host_flag(host, LOST) or self._fabric.reachable(host)

        found = self._store.moves(unfinished=True)
        return [move for move in found if settled(move.source) and settled(move.destination)]

    def recover(self, progress: Progress = quiet, only: str | None = None) -> None:
        """Finishes committed moves and rolls back the others: all unfinished ones, or `only` one. None may be running.

        A move that cannot be recovered now is reported, and its row stays unfinished.
        """
        for move in self._store.moves(unfinished=True):
            if only in (None, move.id):
                try:
                    self._recover(move, progress)
                except Exception as error:
                    progress(f"move {move.id} of {move.node}: {error}")

    def _recover(self, move: Move, progress: Progress) -> None:
        node = self._store.node(move.node)
        if node is None:
            self._store.put_move(move.model_copy(update={"phase": Phase.ROLLED_BACK, "ended": now()}))
            return
        progress(f"{move.node}: {'finishing' if move.committed else 'rolling back'} the move to {move.destination}")
        home = node.model_copy(update={"host": move.source})
        cluster = find_cluster(self._store, node.cluster)
        ends = self._endpoints(home, cluster, move)
        machine = MoveStateMachine(self._store, self._fabric, ends, move, home, progress, never)
        cause = Failed(Code.FAILED, "the daemon ended during the move", "", "move it again")
        if move.committed or machine.roll_back(cause) is None:
            machine.finish()

    def _admit(self, plan: MovePlan, progress: Progress, cancelled: Cancelled, operation: str) -> MoveStateMachine:
        """Reads the rows again, writes the move's and the node's, and makes the rest of the move without that lock, as
        hosts may have to answer."""
        name, host = plan.node.name, plan.destination.name
        with self._store.reserving:
            node = find_node(self._store, name)
            if node.host != plan.node.host:
                why = "it was moved after this was planned"
                raise Refused(Code.WRONG_STATE, f"{name} is on {node.host} now", why, "repeat the command")
            cluster = find_cluster(self._store, node.cluster)
            move = Move(
                id=new_id("mv"),
                node=name,
                cluster=node.cluster,
                source=node.host,
                destination=host,
                phase=Phase.PREPARE,
                created=now(),
                predicted=plan.predicted,
                operation=operation,
                gain=plan.gain,
                pin=check_rows(self._store, node, cluster, plan.destination, plan.partner),
            )
            self._store.put_move(move)
            moving = node.model_copy(update={"state": NodeState.MOVING})
            self._store.put_node(moving)
        try:
            ends = self._endpoints(node, cluster, move, plan.options.parameters)
            machine = MoveStateMachine(self._store, self._fabric, ends, move, moving, progress, cancelled)
        except Exception:
            self._store.put_node(node)
            self._store.put_move(move.model_copy(update={"phase": Phase.ROLLED_BACK, "ended": now()}))
            raise
        self._store.add_event("move.begin", name, f"{name} moves from {node.host} to {host}", move=move.id)
        return machine

    def _predict(self, plan: MovePlan, mover: NodeMover, sample: float) -> Prediction:
        node, path, parameters = plan.node, plan.path, plan.options.parameters
        can_round, max_rounds = mover.can_round(), plan.options.max_rounds
        if parameters.mode in ("pre-copy", "auto-converge") and not can_round:
            what = f"{node.name} cannot be moved with --mode {parameters.mode}"
            why = "its memory cannot be sent while it runs"
            raise Refused(Code.UNSUPPORTED, what, why, "leave --mode out; wherry doctor shows what is missing")
        rounds = can_round and parameters.mode != "stop" and max_rounds != 0
        measured = mover.predict(sample if rounds else 0.0)
        if parameters.compress == "on" and measured.engine == "criu":
            what, why = f"{node.name} cannot be moved with --compress on", "the pager does not carry its memory here"
            raise Refused(Code.UNSUPPORTED, what, why, "leave --compress out; wherry doctor shows what is missing")
        alike = {other.name for other in self._store.nodes() if other.kind == node.kind}
        moves = [m for m in self._store.newest_moves(_LEARNED) if m.node in alike or m.engine]
        past = [m for m in moves if self._crossed(m) == set(path.budgets)]
        rate = None if path.rate is None else path.rate + path.spare
        return forecast(measured, can_round, past, rate, parameters, max_rounds)

    def _crossed(self, move: Move) -> set[Hop] | None:
        """The links with a bandwidth that a past move crossed; None when one of its hosts no longer exists."""
        known = {host.name for host in self._fabric.spec.hosts}
        if not {move.source, move.destination} <= known:
            return None
        return set(link_path(self._fabric.spec, move.source, move.destination).budgets)

    def _endpoints(
        self, node: Node, cluster: Cluster, move: Move, parameters: MigrationParameters | None = None
    ) -> MoveEndpoints:
        """Both ends of a move whose row need not be written yet."""
        placements = self._placements
        there = placements.placement(node, move.destination, cluster)
        return MoveEndpoints(
            self._drivers[node.kind],
            placements.port(node, move.source, cluster),
            placements.port(node, move.destination, cluster),
            placements.placement(node, move.source, cluster),
            there.model_copy(update={"pin": move.pin}),
            parameters or MigrationParameters(),
        )
