"""Operations: commands that take long. Each is a row and a thread; the row tells how far it is and how it ended.

Invariants: an operation ends in exactly one of done, failed, cancelled; operations whose claims conflict never run at
once (the second is refused and names the first); the claims of one that has ended are free, whether or not its row
could be written; rows that a dead daemon left running are marked failed when the next one starts, after it has repaired
what they did.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from wherry.base.clock import now
from wherry.base.errors import Bug, Code, Failed, Refused, WherryError
from wherry.base.ids import new_id
from wherry.model.objects import Operation, OperationState
from wherry.service.claims import Claims
from wherry.store import Store

log = logging.getLogger("wherry.operations")
_LINES = 10_000
"""Lines of progress kept in memory for each running operation."""
_REMEMBERED = 50
"""Ended operations whose lines are kept for a client that still reads them."""
_AT_ONCE = 32
"""Running operations of one user other than root, at most: each is a thread of the daemon."""
_RETRY, _RETRY_LONGEST = 1.0, 60.0
"""Seconds until the end of an operation that could not be written is written again; doubled each time."""


@dataclass
class Task:
    """What the body of an operation sees of it. `claim` adds to what it claims, and is refused as a start is."""

    operation: Operation
    progress: Callable[[str], None]
    claims: Claims
    claim: Callable[[Claims], None]
    stop: threading.Event = field(default_factory=threading.Event)
    lines: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self.operation.state == OperationState.RUNNING

    def cancelled(self) -> bool:
        """True once somebody asked for the end."""
        return self.stop.is_set()

    def check(self) -> None:
        """Raises CANCELLED once somebody asked for the end."""
        if self.cancelled():
            raise Failed(Code.CANCELLED, f"{self.operation.kind} {self.operation.target} was cancelled")


idempotency_key: ContextVar[str] = ContextVar("idempotency_key", default="")
"""Of the request that is being served; an operation that it begins keeps it."""
Body = Callable[[Task], dict[str, Any] | None]
Seen = TypeVar("Seen")


class Operations:
    """Starts, watches and cancels operations."""

    def __init__(self, store: Store, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each line of progress and each end."""
        self._store, self._changed = store, changed
        self._lock = threading.RLock()
        self._tasks: dict[str, Task] = {}
        self._closing = threading.Event()

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
            if self._closing.is_set():
                raise Refused(Code.WRONG_STATE, "the daemon is being stopped", "", "wherry daemon start")
            claims = Claims.of(shared, exclusive)
            self._refuse_conflict(f"{kind} {target}", claims)
            self._refuse_more(uid)
            operation = Operation(
                id=new_id("op"),
                kind=kind,
                target=target,
                state=OperationState.RUNNING,
                created=now(),
                may_cancel=may_cancel,
                uid=uid,
                key=idempotency_key.get(),
            )
            self._store.put_operation(operation)
            id = operation.id
            task = Task(operation, lambda text: self._progress(id, text), claims, lambda more: self._claim(id, more))
            task.thread = threading.Thread(target=self._run, args=(task, body), name=operation.id, daemon=True)
            self._tasks[id] = task
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

    def begun_by(self, uid: int, key: str) -> Operation | None:
        """The operation that a request of this user with this idempotency key began, by this daemon or an earlier."""
        found = self._store.operation_with_key(uid, key)
        return self.get(found.id) if found else None

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
        if task is None or not task.running:
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
            found = [task for task in self._tasks.values() if claim in task.claims]
        if any(task.running for task in found):
            return None
        return {task.operation.id for task in found}

    def close(self, timeout: float) -> None:
        """Takes no more, asks what can be cancelled to end, and waits up to `timeout` seconds for all of it."""
        with self._lock:
            self._closing.set()
            tasks = [task for task in self._tasks.values() if task.running]
        for task in tasks:
            if task.operation.may_cancel:
                task.stop.set()
        deadline = time.monotonic() + timeout
        for task in tasks:
            if task.thread:
                task.thread.join(max(0.0, deadline - time.monotonic()))
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
            ended = task.operation = task.operation.model_copy(update={**change, "ended": now()})
            written = self._written(ended)
        self._changed()
        reason = (ended.error or {}).get("what", "")
        log.info("%s %s %s: %s %s", ended.id, ended.kind, ended.target, ended.state, reason)
        pause = _RETRY
        while not written and not self._closing.wait(pause):
            written, pause = self._written(ended), min(2 * pause, _RETRY_LONGEST)

    def _written(self, ended: Operation) -> bool:
        """Writes the row of the end and its event. False, and logged, when the database refuses (a full disk, say)."""
        reason = (ended.error or {}).get("what", "")
        text = f"{ended.kind} {ended.state}" + (f": {reason}" if reason else "")
        try:
            self._store.put_operation(ended)
            self._store.add_event("operation", ended.target, text, operation=ended.id)
        except Exception:
            log.exception("the end of %s cannot be written", ended.id)
            return False
        return True

    def _progress(self, id: str, text: str) -> None:
        with self._lock:
            task = self._tasks[id]
            if not task.running:
                return
            task.operation = task.operation.model_copy(update={"progress": text})
            if len(task.lines) < _LINES:
                task.lines.append(text)
            try:
                self._store.put_operation(task.operation)
            except Exception:  # a line of progress is no reason to end the work
                log.exception("the progress of %s cannot be written", id)
        self._changed()

    def busy_with(self, shared: Collection[str] = (), exclusive: Collection[str] = ()) -> Operation | None:
        """A running operation whose claims conflict with these; None when there is none."""
        return self._conflicting(Claims.of(shared, exclusive))

    def _conflicting(self, claims: Claims, besides: str = "") -> Operation | None:
        with self._lock:
            for id, other in self._tasks.items():
                if other.running and id != besides and claims.conflict(other.claims):
                    return other.operation
        return None

    def _claim(self, id: str, more: Claims) -> None:
        with self._lock:
            task = self._tasks[id]
            self._refuse_conflict(f"{task.operation.kind} {task.operation.target}", more, besides=id)
            task.claims |= more

    def _refuse_conflict(self, what: str, claims: Claims, besides: str = "") -> None:
        if busy := self._conflicting(claims, besides):
            why = f"operation {busy.id} ({busy.kind} {busy.target}) is under way"
            raise Refused(Code.WRONG_STATE, f"{what} cannot begin now", why, f"wherry op wait {busy.id}")

    def _refuse_more(self, uid: int) -> None:
        if uid != 0 and sum(task.running and task.operation.uid == uid for task in self._tasks.values()) >= _AT_ONCE:
            what = f"{_AT_ONCE} operations of user {uid} are under way already"
            raise Refused(Code.WRONG_STATE, what, "a user has no more at a time", "wherry op list")

    def _forget_old(self) -> None:
        ended = [id for id, task in self._tasks.items() if not task.running]
        for id in ended[:-_REMEMBERED]:
            del self._tasks[id]
