"""Long acts: each is a row and a thread; the row tells what it is, how far it is, and how it ended.

Invariants: an operation ends in exactly one of done, failed, cancelled; two operations that claim the same thing never
run at once (the second is refused and names the first); rows that a dead daemon left running are marked failed when
the next one starts, after it has repaired what they did.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

from wherry.base.clock import now
from wherry.base.errors import Bug, Code, Failed, Refused, WherryError
from wherry.base.ids import new_id
from wherry.model.objects import Operation, OperationState
from wherry.store import Store

log = logging.getLogger("wherry.operations")
_LINES = 10_000
"""Lines of progress kept in memory for each running operation."""
_REMEMBERED = 50
"""Ended operations whose lines are kept for a client that still reads them."""


@dataclass
class Task:
    """What the body of an operation sees of it."""

    operation: Operation
    progress: Callable[[str], None]
    stop: threading.Event = field(default_factory=threading.Event)
    lines: list[str] = field(default_factory=list)
    shared: frozenset[str] = frozenset()
    exclusive: frozenset[str] = frozenset()
    thread: threading.Thread | None = None

    def cancelled(self) -> bool:
        """True once somebody asked for the end."""
        return self.stop.is_set()

    def check(self) -> None:
        """Raises CANCELLED once somebody asked for the end."""
        if self.cancelled():
            raise Failed(Code.CANCELLED, f"{self.operation.kind} {self.operation.target} was cancelled")


Body = Callable[[Task], dict[str, Any] | None]
Seen = TypeVar("Seen")


class Operations:
    """Starts, watches and cancels operations."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._tasks: dict[str, Task] = {}
        self._closing = False

    def start(
        self,
        kind: str,
        target: str,
        body: Body,
        *,
        uid: int = 0,
        may_cancel: bool = True,
        shared: Collection[str] = (),
        exclusive: Collection[str] = (),
    ) -> Operation:
        """Runs `body` in a thread, for user `uid`. WRONG_STATE when a running operation claims what this one claims."""
        with self._lock:
            if self._closing:
                raise Refused(Code.WRONG_STATE, "the daemon is being stopped", "", "wherry daemon start")
            self._refuse_conflict(f"{kind} {target}", frozenset(shared), frozenset(exclusive))
            operation = Operation(
                id=new_id("op"),
                kind=kind,
                target=target,
                state=OperationState.RUNNING,
                created=now(),
                may_cancel=may_cancel,
                uid=uid,
            )
            self._store.put_operation(operation)
            task = Task(operation, lambda text: self._progress(operation.id, text))
            task.shared, task.exclusive = frozenset(shared), frozenset(exclusive)
            task.thread = threading.Thread(target=self._run, args=(task, body), name=operation.id, daemon=True)
            self._tasks[operation.id] = task
            self._forget_old()
        task.thread.start()
        return operation

    def get(self, id: str) -> Operation:
        """The operation as it is now. NOT_FOUND."""
        task = self._tasks.get(id)
        found = task.operation if task else self._store.operation(id)
        if found is None:
            raise Refused(Code.NOT_FOUND, f"there is no operation {id!r}", "", "wherry op list")
        return found

    def ended(self, id: str, seconds: float) -> Operation:
        """The operation as soon as it has ended, or as it is after so many seconds. Waits without polling."""
        task = self._tasks.get(id)
        if task and task.thread:
            task.thread.join(seconds)
        return self.get(id)

    def lines(self, id: str, after: int) -> list[str]:
        """Progress lines from number `after` on; none for an operation of an earlier daemon."""
        task = self._tasks.get(id)
        return task.lines[after:] if task else []

    def all(self, running: bool = False) -> list[Operation]:
        """Oldest first."""
        return self._store.operations(running=running)

    def cancel(self, id: str) -> Operation:
        """Asks the operation to end; it ends by itself soon after. WRONG_STATE when it cannot or has ended."""
        operation = self.get(id)
        task = self._tasks.get(id)
        if operation.state != OperationState.RUNNING or task is None:
            why = f"it is {operation.state}"
            raise Refused(Code.WRONG_STATE, f"operation {id} has ended", why, f"wherry op show {id}")
        if not operation.may_cancel:
            why = f"{operation.kind} cannot be left half done"
            raise Refused(Code.WRONG_STATE, f"operation {id} cannot be cancelled", why, f"wherry op wait {id}")
        task.stop.set()
        return operation

    def while_idle(self, claim: str, look: Callable[[], Seen], act: Callable[[Seen], None]) -> bool:
        """Does `act` with what `look` saw, unless an operation claimed `claim` at any time since before the look.

        A look may take long and holds up nobody; no operation begins while it is acted on, so `act` must be short.
        """
        before = self._claimants(claim)
        if before is None:
            return False
        seen = look()
        with self._lock:
            if self._claimants(claim) != before:
                return False
            act(seen)
            return True

    def _claimants(self, claim: str) -> set[str] | None:
        """Operations that had the claim; None while one has it."""
        with self._lock:
            found = [task for task in self._tasks.values() if claim in task.shared | task.exclusive]
        if any(task.operation.state == OperationState.RUNNING for task in found):
            return None
        return {task.operation.id for task in found}

    def close(self, timeout: float) -> None:
        """Takes no more, asks what can be cancelled to end, and waits up to `timeout` seconds for all of it."""
        with self._lock:
            self._closing = True
            tasks = [t for t in self._tasks.values() if t.operation.state == OperationState.RUNNING]
        for task in tasks:
            if task.operation.may_cancel:
                task.stop.set()
        deadline = now() + timeout
        for task in tasks:
            if task.thread:
                task.thread.join(max(0.0, deadline - now()))
        self.end_left_over()

    def end_left_over(self, finished: Callable[[Operation], dict[str, Any] | None] = lambda _: None) -> None:
        """Ends rows that say running although no thread of this daemon does them: done when `finished` has a result."""
        for operation in self._store.operations(running=True):
            result = finished(operation)
            if result is not None:
                change = {"state": OperationState.DONE, "ended": now(), "result": result}
                self._store.put_operation(operation.model_copy(update=change))
                continue
            why = f"it was busy with: {operation.kind} {operation.target}"
            error = Failed(Code.FAILED, "the daemon was stopped", why, "repeat the command")
            change = {"state": OperationState.FAILED, "ended": now(), "error": error.to_dict()}
            self._store.put_operation(operation.model_copy(update=change))

    def _run(self, task: Task, body: Body) -> None:
        change: dict[str, Any]
        try:
            change = {"state": OperationState.DONE, "result": body(task)}
        except WherryError as error:
            state = OperationState.CANCELLED if error.code == Code.CANCELLED else OperationState.FAILED
            change = {"state": state, "error": error.to_dict()}
            if isinstance(error, Bug):
                log.exception("%s %s", task.operation.kind, task.operation.target)
        except Exception as error:  # the row must end whatever happens
            log.exception("%s %s", task.operation.kind, task.operation.target)
            bug = Bug(f"{task.operation.kind} {task.operation.target} failed in an unforeseen way", repr(error))
            change = {"state": OperationState.FAILED, "error": bug.to_dict()}
        with self._lock:
            ended = task.operation.model_copy(update={**change, "ended": now()})
            self._store.put_operation(ended)
            task.operation = ended
        reason = (ended.error or {}).get("what", "")
        text = f"{ended.kind} {ended.state}" + (f": {reason}" if reason else "")
        self._store.add_event("operation", ended.target, text, operation=ended.id)
        log.info("%s %s %s: %s %s", ended.id, ended.kind, ended.target, ended.state, reason)

    def _progress(self, id: str, text: str) -> None:
        with self._lock:
            task = self._tasks[id]
            if task.operation.state != OperationState.RUNNING:
                return
            task.operation = task.operation.model_copy(update={"progress": text})
            if len(task.lines) < _LINES:
                task.lines.append(text)
            self._store.put_operation(task.operation)

    def busy_with(self, shared: Collection[str] = (), exclusive: Collection[str] = ()) -> Operation | None:
        """The running operation on whose account one with these claims could not begin now."""
        mine, alone = frozenset(shared), frozenset(exclusive)
        with self._lock:
            for other in self._tasks.values():
                if other.operation.state != OperationState.RUNNING:
                    continue
                if alone & (other.exclusive | other.shared) or mine & other.exclusive:
                    return other.operation
        return None

    def _refuse_conflict(self, what: str, shared: frozenset[str], exclusive: frozenset[str]) -> None:
        if busy := self.busy_with(shared, exclusive):
            why = f"operation {busy.id} ({busy.kind} {busy.target}) is under way"
            raise Refused(Code.WRONG_STATE, f"{what} cannot begin now", why, f"wherry op wait {busy.id}")

    def _forget_old(self) -> None:
        ended = [id for id, task in self._tasks.items() if task.operation.state != OperationState.RUNNING]
        for id in ended[:-_REMEMBERED]:
            del self._tasks[id]
