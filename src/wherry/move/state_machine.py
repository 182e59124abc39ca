"""The state machine of one move, the same for every kind of node.

    PREPARE -> ROUNDS -> FREEZE -> TRANSFER -> RESTORE -> COMMIT -> THAW -> DONE
       \\_________\\_________\\_________\\__________\\___> ROLLED_BACK

Invariants: at every step, whichever process is killed, at most one copy of the node runs and one of its ports is
plugged; the stored phase alone determines which copy is the node (from COMMIT on, the destination's); a failure before
the commit rolls back, unless the engine itself has switched to the destination's copy; one after it never does. With
post-copy the source's copy is retired by the release, and killed when the node has all its memory, at which the move is
done; a node that ends before is lost. See docs/design/0002-move.md.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from wherry.base.clock import Stopwatch, now
from wherry.base.errors import Code, Failed, LostContact, WherryError
from wherry.base.progress import never
from wherry.base.units import format_duration, format_size
from wherry.fabric.protocol import Fabric, Hold
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.network import Port
from wherry.model.records import Move, Node, NodeState, Phase
from wherry.move.faults import Fault
from wherry.move.gang import Gang
from wherry.move.link_admission import LinkAdmission
from wherry.move.plan import MovePlan
from wherry.move.precopy_policy import MAX_ROUNDS, another_round, switches_to_post_copy
from wherry.node.protocol import NodeDriver, Placement, ProgramEnded, Transferred
from wherry.store.store import Store

_TRIES = 4
_START_AGAIN = "wherry up FILE starts it again"
_TRY_AGAIN = "wait: the daemon retries while both hosts answer; for a host that will not return: wherry host lost HOST"
_WAITED = "link wait"
"""Key in `Move.phases` of the seconds for which a move waited for links."""
_FREEZES = 8
"""Attempts to freeze a node to which connections are made just then."""
_FIRST_SENT = 0.25
"""Seconds to wait, at the very end, for the first data that a node with running ranks sends."""
_PROGRESS_INTERVAL = 0.5
"""Seconds between two progress messages of a round."""
_PAUSE = 0.1
"""Seconds before the second attempt to finish or to roll back; doubled before each further one."""


@dataclass(frozen=True)
class MoveEndpoints:
    """Both ends of a move: ports and placements, the driver of the node's kind, and the migration parameters."""

    driver: NodeDriver
    source_port: Port
    destination_port: Port
    source: Placement
    destination: Placement
    parameters: MigrationParameters


class MoveStateMachine:
    """Runs, finishes or rolls back one move. `move` and `node` are its records as last stored."""

    def __init__(
        self,
        store: Store,
        fabric: Fabric,
        ends: MoveEndpoints,
        move: Move,
        node: Node,
        progress: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.move = move
        self.node = node
        self._store = store
        self._fabric = fabric
        self._ends = ends
        self._mover = ends.driver.mover(ends.source, ends.destination, ends.parameters)
        self._hold: Hold | None = None
        self._progress = progress
        self._cancelled = cancelled
        self._frozen_at: float | None = None
        self._post_copy = False
        self._lost_frames = 0
        """Frames for which holds had no room."""
        self._silent: LostContact | None = None
        self._told = 0.0
        self._engine_says_source_runs = False
        """True when the engine reported that it has not switched; else the source's copy may have ended regularly."""
        self._committing = False
        """True from the write of the commit's row on, whether or not it succeeded."""
        self._watch = Stopwatch()
        self._started_here = False
        """True when this object ran the move from its beginning, False when it took over an earlier daemon's."""
        self._phases_before_restart = dict(move.phases)
        """Seconds per phase that an earlier daemon measured before it was killed."""

    def run(self, plan: MovePlan, admission: LinkAdmission, gang: Gang | None = None) -> Move:
        """Runs the whole move. Failed when the node stayed at its source, or when finishing failed."""
        self._started_here = True
        try:
            self._to_commit(plan, admission, gang)
        except Exception as error:
            failed = None if self._committed() else self.roll_back(error)
            if failed is not None:
                raise failed from error
            # The commit's row is written, so the destination's copy is the node, and the move is finished.
        return self.finish(plan.fault)

    def finish(self, fault: Fault | None = None) -> Move:
        """After the commit: kills the source's copy, plugs and thaws the destination's. Idempotent."""
        error = self._retried(lambda: self._to_done(fault or Fault()), lambda: self._has_ended(self._ends.destination))
        if error is None:
            return self._done()
        self._drop_hold()
        failed = Failed(Code.MOVE_FAILED, f"the move of {self.node.name} is committed but not finished", str(error))
        if self._lost(self._ends.destination):
            failed.what, failed.next = f"{self.node.name} ended while it was moved", _START_AGAIN
            with contextlib.suppress(WherryError):  # no attempt follows that would
                self._mover.close()
            self._set_node(NodeState.LOST)
            self._store_move(phase=Phase.DONE, ended=now(), error=failed.to_dict())
        else:
            failed.next = _TRY_AGAIN
            self._store_move(error=failed.to_dict())
        self._event("move.failed", str(failed), error=failed.to_dict())
        raise failed

    def roll_back(self, cause: Exception) -> Failed | None:
        """Before the commit: the source runs and is plugged afterwards, and nothing is left at the destination.

        Returns the error for the caller to raise; None when the engine itself had switched to the destination's copy:
        then the move is committed, and must be finished.
        """
        at = self.move.phase
        error = self._retried(
            self._take_back, lambda: self._engine_says_source_runs and self._has_ended(self._ends.source)
        )
        if self._committed():
            return None
        if error is not None:
            self._drop_hold()
        failed = _failure(cause, self.node, at)
        source = self._ends.source
        ended = self._engine_says_source_runs and (self._has_ended(source) if error is None else self._lost(source))
        if error is not None and not ended:
            failed.what = f"{self.node.name} was not moved, and is not rolled back yet"
            failed.why, failed.next = f"{failed.why}; the roll-back failed, too: {error}", _TRY_AGAIN
            self._store_move(error=failed.to_dict())
        else:
            if ended:
                failed.what, failed.next = f"{self.node.name} ended while it was moved", _START_AGAIN
            self._set_node(NodeState.LOST if ended else NodeState.RUNNING)
            self._store_move(phase=Phase.ROLLED_BACK, ended=now(), total=self._total(), error=failed.to_dict())
        self._event("move.rolled-back", str(failed), phase=str(at), error=failed.to_dict())
        return failed

    def _to_commit(self, plan: MovePlan, admission: LinkAdmission, gang: Gang | None) -> None:
        fabric, ends, mover, fault = self._fabric, self._ends, self._mover, plan.fault
        fabric.port_up(ends.destination_port)
        mover.limit_rate(plan.path.rate, plan.path.spare)
        mover.prepare()
        hold = self._hold = fabric.hold(ends.destination_port)
        self._ended(Phase.PREPARE, fault)

        with admission.admitted(plan.path, self._stop_if_cancelled):
            if plan.path.budgets:
                self._watch.lap(_WAITED)
            sent = self._send(plan, hold, gang)

        self._note(phase=Phase.RESTORE)
        restored = mover.restore(lambda _: self._stop_if_cancelled())
        if sent.frozen is not None and restored is not None:
            self._note(downtime_engine=sent.frozen + restored)
        self._ended(Phase.RESTORE, fault)

        self._commit()
        self._ended(Phase.COMMIT, fault, may_cancel=False)

    def _commit(self) -> None:
        """The point of no return."""
        committed = self.move.model_copy(update={"phase": Phase.COMMIT, "phases": self._phases()})
        self._committing = True
        self._store.put_move(committed)
        self.move = committed
        self.node = self.node.model_copy(update={"host": self.move.destination, "pin": self.move.pin})
        self._store.put_node(self.node)

    def _send(self, plan: MovePlan, hold: Hold, gang: Gang | None) -> Transferred:
        """Rounds, freeze and transfer: the phases that load links."""
        mover, fault, parameters = self._mover, plan.fault, self._ends.parameters
        max_rounds = MAX_ROUNDS if plan.options.max_rounds is None else plan.options.max_rounds
        written = plan.predicted.written if plan.predicted else ()
        if mover.can_round() and another_round(self.move.rounds, max_rounds, parameters, written):
            self._store_move(phase=Phase.ROUNDS)
            while another_round(self.move.rounds, max_rounds, parameters, written):
                self._stop_if_cancelled()
                self._round()
        if gang:
            gang.await_all(self.node.name, self._stop_if_cancelled, self._round if self.move.rounds else None)
        self._ended(Phase.ROUNDS, fault)

        self._progress(f"{self.node.name}: freeze")
        self._store_move(phase=Phase.FREEZE)
        self._freeze(hold)
        self._ended(Phase.FREEZE, fault)

        # Until the commit nothing is stored or reported: peers wait, and recovery needs only to know "not committed".
        self._note(phase=Phase.TRANSFER)

        def look(text: str) -> None:
            fault.strike(text, self._stop_if_cancelled)
            self._stop_if_cancelled()

        sent = mover.transfer(look)
        self._note(bytes=self.move.bytes + sent.bytes, carriage=sent.carriage)
        self._ended(Phase.TRANSFER, fault)
        return sent

    def _freeze(self, hold: Hold) -> None:
        """Freezes the node and unplugs its port; both anew when a frame came in between that the node must first deal
        with."""
        fabric, ends, mover = self._fabric, self._ends, self._mover
        for _ in range(_FREEZES):
            self._frozen_at = time.monotonic()
            self._post_copy = switches_to_post_copy(self.move.rounds, ends.parameters)
            if (stood := mover.freeze(self._post_copy)) is not None:
                self._frozen_at = time.monotonic() - stood
            hold.divert()
            fabric.port_unplug(ends.source_port)
            if mover.settled():
                return
            self._lost_frames += hold.give_back(ends.source_port).lost
            fabric.port_plug(ends.source_port)
            hold.drop()
            hold = self._hold = fabric.hold(ends.destination_port)
        what = f"connections to {self.node.name} are made all the time"
        raise Failed(
            Code.MOVE_FAILED, what, f"one came at each of {_FREEZES} attempts to freeze it", "the same command again"
        )

    def _round(self) -> None:
        done = self._mover.round(len(self.move.rounds) + 1, self._during_round)
        self._store_move(rounds=(*self.move.rounds, done), bytes=self.move.bytes + done.bytes)
        left = "" if done.dirty is None else f", {format_size(done.dirty)} changed meanwhile"
        self._progress(f"{self.node.name}: round {done.number}: {format_size(done.bytes)}{left}")

    def _to_done(self, fault: Fault) -> None:
        """Kills or retires the source's copy before the destination's may run, and plugs the port before the thaw."""
        self._mover.release()
        hold, self._hold = self._hold, None
        if hold is None:
            self._fabric.port_plug(self._ends.destination_port)
        else:
            try:
                self._lost_frames += hold.release().lost
            except Exception:
                hold.drop()
                raise
        self._mover.thaw()
        self._tell_lost_frames()
        downtime = None if self._frozen_at is None else time.monotonic() - self._frozen_at
        self._fabric.port_plug(self._ends.destination_port)  # again: a late frame of the source drew the MAC there
        ran = self._ran_again()  # recovery by another daemon waits for it, too
        frozen_at, self._frozen_at = self._frozen_at, None
        if downtime is not None:
            self._note(downtime=downtime, downtime_program=None if ran is None else downtime + ran)
        self._watch.lap(str(Phase.THAW))
        fault.strike(Phase.THAW)
        if self._post_copy:
            self._progress(f"{self.node.name}: runs on {self.move.destination}, where its memory follows")
        fetched = self._mover.complete()
        if fetched and not self.move.fetched:  # else this is another attempt
            self._note(fetched=fetched, bytes=self.move.bytes + fetched.bytes)
        self._fabric.port_down(self._ends.source_port)
        self._mover.close()
        if hold and frozen_at is not None:
            sent = hold.first_sent(0.0 if ran is None else _FIRST_SENT)
            self._note(downtime_peer=None if sent is None else sent - frozen_at)
            hold.drop()  # it would watch a silent node for a second, and a move back needs its TAP
        self._watch.lap(str(Phase.DONE))

    def _ran_again(self) -> float | None:
        try:
            return self._mover.await_first_run()
        except LostContact as error:  # the move is done; the node's silence is reported with it
            self._silent = error
            return None

    def _done(self) -> Move:
        self._set_node(NodeState.RUNNING)
        error = self._silent.to_dict() if self._silent else None
        self._store_move(phase=Phase.DONE, ended=now(), total=self._total(), phases=self._phases(), error=error)
        if self._silent:
            self._event("move.silent", str(self._silent), error=error)
        took = f" in {format_duration(self.move.total)}" if self.move.total else ""
        down = f", downtime {format_duration(self.move.downtime)}" if self.move.downtime else ""
        got = self.move.fetched
        later = f", {format_size(got.bytes)} of it {format_duration(got.seconds)} after the thaw" if got else ""
        self._event(
            "move.done",
            f"{self.node.name} moved from {self.move.source} to {self.move.destination}{took}{down}{later}",
            bytes=self.move.bytes,
            rounds=len(self.move.rounds),
            downtime=self.move.downtime,
            total=self.move.total,
        )
        return self.move

    def _take_back(self) -> None:
        if self._mover.switched():
            self._fabric.port_unplug(self._ends.source_port)
            self._commit()
            return
        self._engine_says_source_runs = True
        if self._hold:
            # the TCP of a peer whose frames are lost backs off, and would stall the job beyond the roll-back
            with contextlib.suppress(WherryError):  # a hold that has ended has lost its frames, as any network may
                self._lost_frames += self._hold.give_back(self._ends.source_port).lost
        self._fabric.port_plug(self._ends.source_port)
        self._mover.roll_back()
        self._tell_lost_frames()
        if self._hold:
            self._hold.drop()
        self._fabric.port_down(self._ends.destination_port)
        self._mover.close()

    def _tell_lost_frames(self) -> None:
        lost, self._lost_frames = self._lost_frames, 0
        if lost:
            text = (
                f"{lost} frames that were sent to {self.node.name} in transit had no room; those of TCP are sent again"
            )
            self._event("move.frames-lost", text, frames=lost)

    def _drop_hold(self) -> None:
        """Ends the hold after the last attempt: recovery has another object, which would not know of it."""
        if self._hold:
            with contextlib.suppress(WherryError):
                self._hold.drop()

    def _committed(self) -> bool:
        """True when the stored row is committed: a write that raised may have succeeded. Without such a write the row
        is not read, as a frozen node must not wait for a database that fails."""
        if self._committing and not self.move.committed:
            stored = self._store.move(self.move.id)
            if stored and stored.committed:
                self.move = stored
        return self.move.committed

    def _lost(self, placement: Placement) -> bool:
        """True when the copy at `placement`, which is the node, has ended by itself and the other end is cleared."""
        ends = self._ends
        if ends.driver.alive(placement):
            return False
        other = ends.destination if placement is ends.source else ends.source
        other_port = ends.destination_port if placement is ends.source else ends.source_port

        def clear() -> None:
            ends.driver.stop(other)
            self._fabric.port_down(other_port)

        return self._retried(clear) is None

    def _retried(self, act: Callable[[], object], hopeless: Callable[[], bool] = never) -> Exception | None:
        """Calls `act` up to _TRIES times, with growing pauses, unless that is `hopeless`; returns the last error, or
        None on success."""
        pause, last = _PAUSE, None
        for attempt in range(_TRIES):
            if attempt:
                if hopeless():
                    break
                time.sleep(pause)
                pause *= 2
            try:
                act()
                return None
            except Exception as error:
                last = error
        return last

    def _has_ended(self, placement: Placement) -> bool:
        try:
            return not self._ends.driver.alive(placement)
        except Exception:  # its host does not answer
            return False

    def _ended(self, phase: Phase, fault: Fault, may_cancel: bool = True) -> None:
        fault.strike(phase, *([self._stop_if_cancelled] if may_cancel else []))
        seconds = self._watch.lap(str(phase))
        if self._frozen_at is None:
            self._progress(f"{self.node.name}: {phase} {format_duration(seconds)}")
        if may_cancel:
            self._stop_if_cancelled()

    def _during_round(self, text: str) -> None:
        """Called at each poll of the engine, many times a second; reports less often, and no empty text."""
        self._stop_if_cancelled()
        if text and time.monotonic() - self._told >= _PROGRESS_INTERVAL:
            self._told = time.monotonic()
            self._progress(f"{self.node.name}: round {len(self.move.rounds) + 1}: {text}")

    def _stop_if_cancelled(self) -> None:
        """Before the commit, at each look: ends the move when it was cancelled, or when it has lost a program."""
        if self._cancelled():
            raise Failed(Code.CANCELLED, f"the move of {self.node.name} was cancelled", "", "")
        if why := self._mover.problem() or (self._hold.problem() if self._hold else ""):
            raise ProgramEnded(Code.MOVE_FAILED, "a program of the move ended", why, "the same command again")

    def _note(self, **changes: object) -> None:
        self.move = self.move.model_copy(update=changes)

    def _store_move(self, **changes: object) -> None:
        self._note(**changes)
        self._store.put_move(self.move)

    def _set_node(self, state: NodeState) -> None:
        host = self.move.destination if self.move.committed else self.move.source
        pin = self.move.pin if self.move.committed else self.node.pin
        self.node = self.node.model_copy(update={"host": host, "state": state, "pin": pin})
        self._store.put_node(self.node)

    def _total(self) -> float | None:
        """Seconds that the move took; None when an earlier daemon began it: its stopwatch ended with it."""
        return self._watch.total() if self._started_here else None

    def _phases(self) -> dict[str, float]:
        return self._phases_before_restart | self._watch.laps

    def _event(self, kind: str, text: str, **data: object) -> None:
        self._store.add_event(kind, self.node.name, text, move=self.move.id, **data)


def _failure(cause: Exception, node: Node, phase: Phase) -> Failed:
    """The error of a move that was rolled back, with the text of its cause."""
    stays = f"{node.name} runs on {node.host} as before"
    if isinstance(cause, WherryError) and cause.code == Code.CANCELLED:
        return Failed(Code.CANCELLED, cause.what, stays, "")
    why = f"{phase}: {cause}" if str(cause) else f"{phase}: {type(cause).__name__}"
    remedy = cause.next if isinstance(cause, WherryError) and cause.next else "wherry doctor"
    return Failed(Code.MOVE_FAILED, f"{node.name} was not moved; it runs on {node.host} as before", why, remedy)
