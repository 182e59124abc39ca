"""Two nodes change places: for when every host is full, and neither could be moved first.

While both are on one host it has more than its declared CPUs, which only costs speed, and perhaps more than its
declared memory, which is allowed if that much is really free. Invariants: when a swap ends, either both nodes are where
they were wanted, or both where they were, or the error has the place of each; each move is an ordinary one with its
row.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from wherry.base.errors import Bug, Code, Failed, Refused, WherryError
from wherry.base.progress import Cancelled, Progress
from wherry.base.units import format_size
from wherry.cluster.lookup import find_host, find_node, known_hosts
from wherry.fabric.host_counters import HostUse
from wherry.fabric.protocol import Fabric
from wherry.model.records import Gain, Move, Node
from wherry.move.faults import parse_fault
from wherry.move.gang import Gang
from wherry.move.moves import Moves
from wherry.move.plan import MovePlan
from wherry.schedule.placement import Used, used_by
from wherry.store.store import Store

_SPARE = 32 << 20
"""Bytes that stay free on a host that carries both nodes."""


@dataclass(frozen=True)
class SwapPlan:
    """The two moves, in the order in which they are made where not `together`: then both freeze once, as nodes of one
    job."""

    first: MovePlan
    second: MovePlan
    together: bool

    @property
    def names(self) -> tuple[str, str]:
        """The two nodes."""
        return self.first.node.name, self.second.node.name


class Swaps:
    """The swaps of an instance's nodes. The caller holds the claims of both."""

    def __init__(self, store: Store, fabric: Fabric, moves: Moves) -> None:
        self._store, self._fabric, self._moves = store, fabric, moves

    def plan(self, one: str, other: str, gain: Gain | None = None, of: str = "", fault: str | None = None) -> SwapPlan:
        """Plans the swap, of which balancing predicts the `gain` of cluster `of`, whose moves alone have it. Contacts
        the two hosts, changes nothing. Refused with the reason. `fault` strikes the second move."""
        strikes = parse_fault(fault)
        here, there = find_node(self._store, one), find_node(self._store, other)
        if here.host == there.host:
            what = f"{one} cannot be swapped with itself" if one == other else f"{one} and {other} cannot be swapped"
            raise Refused(Code.WRONG_STATE, what, f"both are on {here.host}", "wherry status")
        plans = self._moves.plan(one, there.host, partner=other), self._moves.plan(other, here.host, partner=one)
        obstacles = self.check_room(here, there)
        together = not any(obstacles) and one in self._moves.gangs({one: there.host, other: here.host}, 2)
        first, second = (
            replace(part, gain=gain if part.node.cluster == of else None)
            for part in (plans if not obstacles[0] else plans[::-1])
        )
        return SwapPlan(first, replace(second, fault=strikes), together)

    def check_room(self, one: Node, other: Node) -> tuple[str, str]:
        """Why the one, and why the other, cannot go first; empty for who can. Refused when neither can."""
        obstacles = self._obstacle(one, other), self._obstacle(other, one)
        if all(obstacles):
            what = f"{one.name} and {other.name} cannot be swapped"
            raise Refused(Code.NO_CAPACITY, what, "; ".join(obstacles), "wherry status")
        return obstacles

    def _obstacle(self, node: Node, partner: Node) -> str:
        """Why the partner's host cannot carry both nodes for a while; empty when it can. Other nodes there may yet use
        all that they declare."""
        host = find_host(known_hosts(self._store, self._fabric, ()), partner.host)
        used = used_by(self._store.nodes(), self._store.moves(unfinished=True)).get(host.name, Used())
        if used.memory + node.memory <= host.memory:
            return ""
        try:
            there = self._fabric.use(host.name, (partner.name,))
            needs, theirs = _memory(node, self._fabric.use(node.host, (node.name,))), _memory(partner, there)
        except WherryError as error:
            return f"{host.name} has no declared memory for both, and its really free memory is not known: {error.why}"
        whole = host.memory if there.memory_limit is None else min(there.memory_limit, host.memory)
        free = whole - max(there.memory, used.memory - partner.memory + theirs)
        if needs + _SPARE <= free:
            return ""
        return f"{host.name} has {format_size(max(0, free))} of memory free, {node.name} uses {format_size(needs)}"

    def apply(self, plan: SwapPlan, progress: Progress, cancelled: Cancelled, operation: str = "") -> tuple[Move, Move]:
        """Swaps the nodes as planned. When only one is done its node is moved back; Failed in any case but success."""
        gang = Gang(plan.names) if plan.together else None

        def run(part: MovePlan) -> Move | WherryError:
            try:
                return self._moves.apply(part, progress, cancelled, operation, gang)
            except WherryError as error:
                return error
            except Exception as error:  # the other node must be moved back all the same
                return Bug(f"the move of {part.node.name} failed in an unforeseen way", repr(error))
            finally:
                if gang:
                    gang.leave(part.node.name)

        first, second = self._both(plan, run)
        if isinstance(first, Move) and isinstance(second, Move):
            return first, second
        raise self._undone(plan, first, second, progress)

    def _both(
        self, plan: SwapPlan, run: Callable[[MovePlan], Move | WherryError]
    ) -> tuple[Move | WherryError, Move | WherryError | None]:
        if plan.together:
            with ThreadPoolExecutor(2, thread_name_prefix="swap") as pool:
                begun = pool.submit(run, plan.first), pool.submit(run, plan.second)
                return begun[0].result(), begun[1].result()
        first = run(plan.first)
        return first, run(plan.second) if isinstance(first, Move) else None

    def _undone(
        self, plan: SwapPlan, first: Move | WherryError, second: Move | WherryError | None, progress: Progress
    ) -> Failed:
        """The error of a swap that failed, after the node whose move was done is moved back. Rows have the places
        of the nodes: a move may be committed and not finished."""
        one, other = plan.names
        errors = [move for move in (first, second) if isinstance(move, WherryError)]
        error, said = errors[0], "; ".join(dict.fromkeys(map(str, errors)))
        done = first if isinstance(first, Move) else second
        what, again = f"{one} and {other} were not swapped", f"wherry swap {one} {other}"
        there = [part for part in (plan.first, plan.second) if self._is_there(part)]
        if len(there) == 2:
            what = f"{one} and {other} changed places, and a move is not finished"
            return Failed(Code.PARTLY_DONE, what, said, error.next)
        if not there:
            return Failed(error.code, what, f"{error}; both are where they were", again)
        if not isinstance(done, Move):
            gone, left = there[0], other if there[0] is plan.first else one
            where = f"{gone.node.name} is on {gone.destination.name} now, where {left} is too"
            remedy = f"wherry move {left} --to {gone.node.host}"
            return Failed(Code.PARTLY_DONE, f"{one} and {other} are swapped in half", f"{where}: {said}", remedy)
        progress(f"{done.node} is moved back to {done.source}")
        try:
            self._moves.run(done.node, done.source, progress=progress)
        except Exception as second_error:
            left = other if done.node == one else one
            where = f"{done.node} is on {done.destination} now, where {left} is too"
            remedy = f"wherry move {left} --to {done.source}"
            what = f"{one} and {other} are swapped in half"
            return Failed(Code.PARTLY_DONE, what, f"{where}: {error}; not moved back: {second_error}", remedy)
        return Failed(error.code, what, f"{error}; {done.node} was moved back to {done.source}", again)

    def _is_there(self, part: MovePlan) -> bool:
        node = self._store.node(part.node.name)
        return node is not None and node.host == part.destination.name


def _memory(node: Node, use: HostUse) -> int:
    """Bytes that the node uses; a machine counts as a whole, as does a node that its host does not count."""
    return node.memory if node.kind == "vm" or node.name not in use.nodes else use.nodes[node.name].memory
