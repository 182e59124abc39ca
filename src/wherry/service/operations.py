"""Operations: commands that take long. Each is a row and a thread; the row has its progress and its result.

Invariants: an operation ends as exactly one of done, failed, cancelled. Operations with conflicting claims never run at
the same time: the second is refused, and the refusal names the first. An operation that waits has no thread and no
claims. The end of an operation frees its claims, whether or not its row could be written. Rows left running by a dead
daemon are marked failed when the next daemon starts, after its recovery; operations that waited wait on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from wherry.base.acting import acting
from wherry.base.clock import now
from wherry.base.errors import Bug, Code, Failed, Refused, WherryError
from wherry.base.ids import new_id
from wherry.base.text import printable
from wherry.model.accounts import is_account
from wherry.model.operation_step import OperationStep, OperationStepKind
from wherry.model.paging import Page, Wanted
from wherry.model.records import Operation, OperationState
from wherry.service.claims import Claims
from wherry.service.task import Again, Body, Task
from wherry.store import Store

log = logging.getLogger("wherry.operations")
_LINES = 10_000
"""Lines of progress kept in memory for each operation."""
_KEPT_ENDED = 50
"""Ended operations whose lines of progress are kept for clients that still read them."""
_MAX_RUNNING = 32
"""Most running operations of one user other than root, and as many that are counted apart, root's too: each is a thread
of the daemon."""
_RETRY, _MAX_RETRY = 1.0, 60.0
"""Backoff in seconds, doubled up to the second figure, of writing an operation's end that the database refused."""


@dataclass(eq=False)
class _Observation:
    """A call of `if_unclaimed`; void once an operation has held claims that conflict with its own."""

    claims: Claims
    void: bool = False


idempotency_key: ContextVar[str] = ContextVar("idempotency_key", default="")
"""Idempotency key of the current request; the operation that it begins keeps it."""
Observed = TypeVar("Observed")


def _step(kind: OperationStepKind, text: str, by: str = "") -> OperationStep:
    return OperationStep(time=now(), kind=kind, text=printable(text), by=by)


class Operations:
    """The operations of an instance. Safe from several threads."""

    def __init__(self, store: Store, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each line of progress and each end."""
        self._store, self._changed = store, changed
        self._lock = threading.RLock()
        self._tasks: dict[str, Task] = {}
        self._observations: list[_Observation] = []
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
        apart: bool = False,
        owner: int | None = None,
    ) -> Operation:
        """Runs `body` in a thread, for user `uid`, on things of `owner` (None: nobody). WRONG_STATE when the
        claims conflict with a running operation's. An operation that mostly waits is counted `apart`, so that it keeps
        its user from nothing else."""
        with self._lock:
            if self._closing.is_set():
                raise Refused(Code.WRONG_STATE, "the daemon is being stopped", "", "wherry daemon start")
            claims = Claims.of(shared, exclusive)
            self._refuse_conflict(f"{kind} {target}", claims, uid, owner)
            self._refuse_more(kind, uid, apart)
            operation = Operation(
                id=new_id("op"),
                kind=kind,
                target=target,
                state=OperationState.RUNNING,
                created=now(),
                may_cancel=may_cancel,
                uid=uid,
                key=idempotency_key.get(),
                by=acting.get(),
                owner=owner,
            )
            self._store.put_operation(operation, _step(OperationStepKind.BEGIN, f"{kind} {target}", operation.by))
            task = Task(
                operation,
                lambda text: self._progress(task, text),
                claims,
                lambda more: self._claim(task, more),
                lambda name: self._downgrade_claim(task, name),
                apart,
            )
            task.thread = threading.Thread(target=self._run, args=(task, body), name=operation.id, daemon=True)
            self._start_thread(task)  # under the lock: a thread that finds the task may join its thread
            self._tasks[operation.id] = task
            self._void_observations(claims)
            self._forget_old()
        return operation

    def enter(self, kind: str, target: str, enters: Callable[[Operation], None], *, uid: int, owner: int) -> Operation:
        """An operation that waits until `begin`. `enters` keeps its wish, and may refuse it."""
        with self._lock:
            if self._closing.is_set():
                raise Refused(Code.WRONG_STATE, "the daemon is being stopped", "", "wherry daemon start")
            mine = (task for task in self._tasks.values() if task.operation.uid == uid)
            if uid != 0 and sum(task.operation.state is OperationState.WAITING for task in mine) >= _MAX_RUNNING:
                what = f"{_MAX_RUNNING} operations of user {uid} wait already"
                raise Refused(Code.TOO_MANY, what, "that is the limit for one user", "wherry queue list")
            operation = Operation(
                id=new_id("op"), kind=kind, target=target, state=OperationState.WAITING, created=now(),
                may_cancel=True, uid=uid, key=idempotency_key.get(), by=acting.get(), owner=owner,
            )  # fmt: skip
            enters(operation)
            self.resume(operation)
        return operation

    def resume(self, operation: Operation) -> None:
        """Has an operation wait, also of an earlier daemon."""
        operation = operation.model_copy(update={"state": OperationState.WAITING})
        with self._lock:
            self._store.put_operation(operation)
            task = Task(
                operation,
                lambda text: self._progress(task, text),
                Claims(),
                lambda more: self._claim(task, more),
                lambda name: self._downgrade_claim(task, name),
            )
            self._tasks[operation.id] = task
            self._forget_old()

    def begin(self, id: str, body: Body, *, shared: Collection[str], exclusive: Collection[str]) -> bool:
        """Runs an operation that waited; False when it does not wait any more. WRONG_STATE when the claims conflict:
        then it waits on."""
        with self._lock:
            task, claims = self._tasks.get(id), Claims.of(shared, exclusive)
            if task is None or task.operation.state is not OperationState.WAITING or self._closing.is_set():
                return False
            operation = task.operation
            self._refuse_conflict(f"{operation.kind} {operation.target}", claims, operation.uid, operation.owner)
            task.claims, task.stop = claims, threading.Event()
            task.operation = operation.model_copy(update={"state": OperationState.RUNNING})
            self._store.put_operation(task.operation)
            task.thread = threading.Thread(target=self._run, args=(task, body), name=id, daemon=True)
            self._start_thread(task)
            self._void_observations(claims)
        return True

    def tell(self, id: str, text: str) -> None:
        """A line of progress of an operation that waits, unless it is its last one."""
        task = self._tasks.get(id)
        if task and task.operation.state is OperationState.WAITING and task.operation.progress != printable(text):
            self._progress(task, text)

    def _start_thread(self, task: Task) -> None:
        """FAILED, and so is the row, when the kernel refuses a thread; the task then holds no claims."""
        assert task.thread
        try:
            task.thread.start()
        except RuntimeError as error:
            what = f"{task.operation.kind} {task.operation.target} cannot begin"
            failed = Failed(Code.FAILED, what, str(error), "end other processes, or raise the limit of threads")
            change = {"state": OperationState.FAILED, "ended": now(), "error": failed.to_dict()}
            task.operation = task.operation.model_copy(update=change)
            self._store.put_operation(task.operation)
            raise failed from error

    def get(self, id: str) -> Operation:
        """The operation as it is now. NOT_FOUND."""
        task = self._tasks.get(id)
        found = task.operation if task else self._store.operation(id)
        if found is None:
            raise no_operation(id)
        return found

    def with_key(self, uid: int, key: str) -> Operation | None:
        """The operation that this user began with this idempotency key, at this daemon or an earlier one."""
        found = self._store.operation_with_key(uid, key)
        return self.get(found.id) if found else None

    def wait(self, id: str, seconds: float) -> Operation:
        """The operation once it has ended, or its state after `seconds`."""
        task = self._tasks.get(id)
        if task and task.thread:
            task.thread.join(seconds)
        return self.get(id)

    def lines(self, id: str, after: int) -> list[str]:
        """Progress lines from number `after` on; none for an operation of an earlier daemon."""
        task = self._tasks.get(id)
        return task.lines[after:] if task else []

    def trail(self, id: str) -> list[OperationStep]:
        """The steps through which an operation went, oldest first; also of an earlier daemon's."""
        with self._lock:  # that of an end, which readers of the operation may have seen, is being written under it
            return self._store.steps.of(id)

    def all(self, running: bool = False) -> list[Operation]:
        """Oldest first; with `running`, operations under way: none that has ended, even if its row cannot be
        written."""
        rows = self._store.operations(running=running)
        found = [task.operation if (task := self._tasks.get(row.id)) else row for row in rows]
        return [operation for operation in found if not running or operation.state.under_way]

    def page(self, wanted: Wanted, running: bool = False, uids: Collection[int] | None = None) -> Page[Operation]:
        """A page of `all`; of operations of some users, if given."""

        def present(row: Operation) -> Operation:
            return task.operation if (task := self._tasks.get(row.id)) else row

        def shown(row: Operation) -> bool:
            return not running or present(row).state.under_way

        found = self._store.pages.operations(wanted, running, uids, shown)
        return Page([present(row) for row in found.rows], found.next)

    def cancel(self, id: str) -> Operation:
        """Requests cancellation; the operation ends soon after. WRONG_STATE when it has ended or cannot be."""
        operation = self.get(id)
        task = self._tasks.get(id)
        with self._lock:
            if task and task.operation.state is OperationState.WAITING:
                task.stop.set()
                task.operation = task.operation.model_copy(update={"state": OperationState.RUNNING})
                task.thread = threading.Thread(target=self._run, args=(task, _no_body), name=id, daemon=True)
                self._start_thread(task)
                return task.operation
        if task is None or not task.running:
            why = f"it is {operation.state}"
            raise Refused(Code.WRONG_STATE, f"operation {id} has ended", why, f"wherry op show {id}")
        if not operation.may_cancel:
            why = f"{operation.kind} cannot be left half done"
            raise Refused(Code.WRONG_STATE, f"operation {id} cannot be cancelled", why, f"wherry op wait {id}")
        task.stop.set()
        with self._lock:
            if task.running and not task.asked_to_end:
                task.asked_to_end = True
                step = _step(OperationStepKind.CANCEL, "it was asked to end", acting.get())
                try:
                    self._store.put_operation(task.operation, step)
                except Exception:  # it ends all the same
                    log.exception("the cancellation of %s cannot be written", id)
        return operation

    def cancel_waiting(self, id: str) -> bool:
        """Requests cancellation of an operation that claims nothing so far; whether it was one."""
        with self._lock:
            task = self._tasks.get(id)
            if task is None or not task.running or task.claims != Claims():
                return False
            task.stop.set()
            return True

    def cancelled(self, id: str) -> bool:
        """Whether a running operation is being cancelled."""
        task = self._tasks.get(id)
        return task is not None and task.cancelled()

    def if_unclaimed(self, claims: Claims, observe: Callable[[], Observed], act: Callable[[Observed], object]) -> bool:
        """Calls `act` with the result of `observe`, unless an operation held claims that conflict with these at any
        time since the call began.

        `observe` runs without a lock and may take long. `act` runs under the lock, so that no operation begins
        meanwhile, and must be short. True when `act` was called.
        """
        observation = _Observation(claims)
        with self._lock:
            if any(task.running and claims.conflict(task.claims) for task in self._tasks.values()):
                return False
            self._observations.append(observation)
        try:
            observed = observe()
            with self._lock:
                if observation.void:
                    return False
                act(observed)
                return True
        finally:
            with self._lock:
                self._observations.remove(observation)

    def _void_observations(self, claims: Claims) -> None:
        """Called under the lock when an operation takes claims."""
        for observation in self._observations:
            observation.void |= observation.claims.conflict(claims)

    @property
    def closing(self) -> bool:
        """True once the daemon is being stopped."""
        return self._closing.is_set()

    def close(self, timeout: float) -> None:
        """Refuses new operations, cancels others where possible, and waits up to `timeout` seconds for all to end."""
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
        """Ends the rows that are still running: done when `finished` has a result for one, else failed.

        Rows that the database refuses are written later, and have ended for the readers of this daemon.
        """
        for operation in self._store.operations(running=True):
            if operation.id in self._tasks and operation.state is OperationState.WAITING:
                continue  # the next daemon has it wait on
            result = finished(operation)
            change: dict[str, Any] = {"state": OperationState.DONE, "ended": now(), "result": result}
            if result is None:
                why = f"{operation.kind} {operation.target} was under way"
                error = Failed(Code.FAILED, "the daemon was stopped", why, "repeat the command")
                change = {"state": OperationState.FAILED, "ended": now(), "error": error.to_dict()}
            ended = operation.model_copy(update=change)
            if not self._written(ended):
                self._write_later(ended)

    def _write_later(self, ended: Operation) -> None:
        """Keeps an ended operation of an earlier daemon in memory, with a thread that writes its row."""
        task = Task(ended, lambda _: None, Claims(), lambda _: None, lambda _: None)
        task.thread = threading.Thread(target=self._write_until_done, args=(ended,), name=ended.id, daemon=True)
        with self._lock:
            self._tasks[ended.id] = task
            task.thread.start()

    def _write_until_done(self, ended: Operation) -> None:
        """Writes the row of an end with growing pauses, until it is written or the daemon ends."""
        pause = _RETRY
        while not self._closing.wait(pause) and not self._written(ended):
            pause = min(2 * pause, _MAX_RETRY)

    def _run(self, task: Task, body: Body) -> None:
        acting.set(task.operation.by)
        try:
            self._end(task, body)
        except Again as again:
            with self._lock:
                waits = self._closing.is_set() or not task.cancelled()
                if waits:
                    task.claims, task.thread = Claims(), None
                    task.operation = task.operation.model_copy(update={"state": OperationState.WAITING})
            if waits:
                self._progress(task, str(again))
            else:
                self._end(task, _no_body)

    def _end(self, task: Task, body: Body) -> None:
        """Ends an operation with the result of its body."""
        change: dict[str, Any]
        try:
            change = {"state": OperationState.DONE, "result": body(task)}
        except Again:
            raise
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
        if not written:
            self._write_until_done(ended)

    def _written(self, ended: Operation) -> bool:
        """Writes the row of the end and its event. False, and logged, when the database refuses (a full disk)."""
        reason = (ended.error or {}).get("what", "")
        text = f"{ended.kind} {ended.state}" + (f": {reason}" if reason else "")
        try:
            why = (ended.error or {}).get("why", "")
            end = f"{ended.state}{f': {reason}' if reason else ''}{f'; {why}' if why else ''}"
            self._store.put_operation(ended, _step(OperationStepKind.END, end))
            told = {"operation": ended.id, "command": ended.kind, "state": str(ended.state)}
            seconds = max(0.0, (ended.ended or ended.created) - ended.created)
            self._store.add_event("operation", ended.target, text, ended.owner, **told, seconds=seconds)
        except Exception:
            log.exception("the end of %s cannot be written", ended.id)
            return False
        return True

    def _progress(self, task: Task, text: str) -> None:
        text = printable(text)  # an error's, perhaps, with the name of a user's file
        with self._lock:
            if not task.operation.state.under_way:
                return
            task.operation = task.operation.model_copy(update={"progress": text})
            step = _step(OperationStepKind.PROGRESS, text)
            if len(task.lines) < _LINES:
                task.lines.append(text)
            try:
                self._store.put_operation(task.operation, step)
            except Exception:  # the work continues without it
                log.exception("the progress of %s cannot be written", task.operation.id)
        self._changed()

    def conflicting_operation(
        self, shared: Collection[str] = (), exclusive: Collection[str] = (), besides: str = ""
    ) -> Operation | None:
        """A running operation, other than `besides`, whose claims conflict with these; None if there is none."""
        return self._conflicting(Claims.of(shared, exclusive), besides)

    def _conflicting(self, claims: Claims, besides: str = "") -> Operation | None:
        with self._lock:
            for id, other in self._tasks.items():
                if other.running and id != besides and claims.conflict(other.claims):
                    return other.operation
        return None

    def _claim(self, task: Task, more: Claims) -> None:
        with self._lock:
            operation = task.operation
            what = f"{operation.kind} {operation.target}"
            self._refuse_conflict(what, more, operation.uid, operation.owner, operation.id)
            task.claims |= more
            self._void_observations(more)

    def _downgrade_claim(self, task: Task, name: str) -> None:
        with self._lock:
            task.claims = Claims(task.claims.shared | {name}, task.claims.exclusive - {name})

    def _refuse_conflict(self, what: str, claims: Claims, uid: int, owner: int | None, besides: str = "") -> None:
        """The error for an account hides other users' operations."""
        if busy := self._conflicting(claims, besides):
            if is_account(uid) and not {busy.uid, busy.owner} & {uid, owner}:
                why = "an operation of another user is under way"
                raise Refused(Code.WRONG_STATE, f"{what} cannot begin now", why, "repeat the command in a moment")
            why = f"operation {busy.id} ({busy.kind} {busy.target}) is under way"
            raise Refused(Code.WRONG_STATE, f"{what} cannot begin now", why, f"wherry op wait {busy.id}")

    def _refuse_more(self, kind: str, uid: int, apart: bool) -> None:
        alike = (task for task in self._tasks.values() if task.apart == apart and task.operation.uid == uid)
        counted = sum(task.running and not (apart and task.cancelled()) for task in alike)  # one of those ends at once
        if (uid != 0 or apart) and counted >= _MAX_RUNNING:
            what = f"{_MAX_RUNNING} {f'{kind} ' if apart else ''}operations of user {uid} are under way already"
            raise Refused(Code.WRONG_STATE, what, "that is the limit for one user", "wherry op list --running")

    def _forget_old(self) -> None:
        ended = [id for id, task in self._tasks.items() if not task.operation.state.under_way]
        for id in ended[:-_KEPT_ENDED]:
            del self._tasks[id]


def _no_body(task: Task) -> None:
    """The body of an operation that is cancelled while it waits."""
    task.check()


def no_operation(id: str) -> Refused:
    """The error for an operation that does not exist, or that the caller may not see."""
    return Refused(Code.NOT_FOUND, f"there is no operation {id!r}", "", "wherry op list")
