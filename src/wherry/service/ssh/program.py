"""A program on a node whose streams are a channel of SSH: a job of kind `exec` whose output is kept nowhere.

Invariants: the program is started by the same commands, with the same rights, as by `POST /v1/nodes/NAME/exec`;
neither side holds more than its buffers, so a client that does not read keeps its program waiting; the program is ended
when its channel is.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from wherry.base.acting import acting
from wherry.base.errors import Bug, Code, WherryError, from_dict
from wherry.job import holder_files
from wherry.job.job_end import ENDED
from wherry.job.jobs import Jobs
from wherry.job.live_streams import OutputFrames
from wherry.model.job_request import ExecRequest
from wherry.model.records import Job, OperationState
from wherry.service.account_caller import AccountCaller
from wherry.service.audit import Audit
from wherry.service.commands import Commands
from wherry.service.context import ServiceContext
from wherry.service.exec_commands import ExecCommands
from wherry.service.rest.authorization import RULES, require_allowed, require_role

log = logging.getLogger("wherry.ssh")
_PIECE, _WAITING = 1 << 16, 1 << 20
"""Bytes that are read at once, and that wait for the program before the client is asked to wait."""
_SECONDS, _EXCHANGING_SECONDS = 30.0, 0.05
EXEC = ("POST", "/v1/nodes/{name}/exec")
"""The row of rights that counts."""
_T = TypeVar("_T")
_UNDER_WAY = (OperationState.WAITING, OperationState.RUNNING)


@dataclass(frozen=True)
class Place:
    """A node, and how it is reached. `caller` gives the account as it is now, and is called in a thread. `writable` is
    set while the client's connection takes more, whatever the channel's window is; while it `is_exchanging` keys, more
    would be kept in memory."""

    context: ServiceContext
    audit: Audit
    executor: Executor
    node: str
    caller: Callable[[], AccountCaller]
    writable: asyncio.Event
    is_exchanging: Callable[[], bool]


class ProgramOnNode(ABC):
    """The part that all channels share. A subclass has the program, and gets its output and its end; asyncssh
    calls the methods that it inherits."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.job = ""
        self._channel: Any = None
        self._input = bytearray()
        self._ended = self._paused = False
        """Whether the client sends no more, and whether it is asked to wait."""
        self._more, self._writable, self._gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def request(self, commands: Commands) -> ExecRequest:
        """The program, for the caller of these commands. WherryError."""

    @abstractmethod
    def output(self, data: bytes, is_error: bool) -> None:
        """Output of the program. OSError when the client is gone."""

    @abstractmethod
    def end(self, job: Job | None, error: WherryError | None) -> None:
        """The end of the program, or the reason why it was not started. OSError when the client is gone."""

    # Called by asyncssh.

    def connection_made(self, chan: Any) -> None:
        """The channel."""
        self._channel = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Input for the program."""
        self._input += data
        self._more.set()
        if len(self._input) > _WAITING:
            self._paused = True
            self._channel.pause_reading()

    def eof_received(self) -> bool:
        """The end of the input; the output continues."""
        self._ended = True
        self._more.set()
        return True

    @property
    def takes_more(self) -> bool:
        """Whether input that the client does not count may be added."""
        return len(self._input) <= _WAITING

    def pause_writing(self) -> None:
        """The client does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It reads again."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed: so the program is ended."""
        self._gone.set()
        self._more.set()

    # Called by the server.

    @property
    def is_over(self) -> bool:
        """True when its channel is closed and its program has ended, or never began."""
        return self._gone.is_set() and (self._task is None or self._task.done())

    async def settled(self) -> None:
        """Returns when its program is ended and forgotten."""
        if self._task:
            await asyncio.wait([self._task])

    # The program.

    def begin(self) -> None:
        """Starts the program."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        reader, job, failure = -1, None, None
        feeding: asyncio.Task[None] | None = None
        try:
            reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                self.job = await self._in_thread(self._start, writer)
            finally:
                os.close(writer)
            feeding = asyncio.create_task(self._feed())
            await self._pass_output(reader)
            os.close(reader)  # a program whose client is gone is ended by it
            reader = -1
            job = await self._in_thread(self._end)
        except WherryError as error:
            failure = error
        except Exception as error:
            log.exception("a program for SSH on %s failed", self.place.node)
            failure = Bug("the session failed in an unforeseen way", type(error).__name__)
        finally:
            if feeding:
                feeding.cancel()
            if reader >= 0:
                os.close(reader)
            if self.job:
                await self._in_thread(self._forget)
            with suppress(OSError):
                self.end(job, failure)

    async def _in_thread(self, act: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self.place.executor, act, *arguments)

    def _start(self, writer: int) -> str:
        """The id of the job, which runs. WherryError."""
        context, node, caller = self.place.context, self.place.node, self.place.caller()
        token = acting.set(caller.who)
        operation, outcome = "", ""
        try:
            rule = RULES[EXEC]
            require_role(caller, rule, f"SSH to {node}")
            require_allowed(caller, rule, context)
            operation = ExecCommands(context, caller).start(self.request(Commands(context, caller)), writer).id
            while (found := context.operations.wait(operation, _SECONDS)).state in _UNDER_WAY:
                pass
            if found.error or not found.result:
                raise from_dict(found.error or {})
            return Job.model_validate(found.result["job"]).id
        except WherryError as error:
            outcome = error.code
            raise
        finally:
            acting.reset(token)
            status = Code(outcome).http_status if outcome else 200
            location = f"/v1/operations/{operation}" if operation else ""
            self.place.audit.write(caller.who, caller.address, "SSH", f"/{node}", status, location, code=outcome)

    async def _pass_output(self, reader: int) -> None:
        """Until the program has closed its streams, or the client is gone."""
        frames, loop = OutputFrames(), asyncio.get_running_loop()
        while not self._gone.is_set():
            await self._set(self._writable)
            await self._set(self.place.writable)
            while self.place.is_exchanging() and not self._gone.is_set():
                await asyncio.sleep(_EXCHANGING_SECONDS)
            try:
                piece = os.read(reader, _PIECE)
            except BlockingIOError:
                await self._ready(reader, loop.add_reader, loop.remove_reader)
                continue
            if not piece:
                return
            try:
                for stream, data in frames.feed(piece):
                    self.output(data, stream == "stderr")
            except OSError:  # the client is gone
                return
            await asyncio.sleep(0)

    async def _feed(self) -> None:
        """Gives the client's input to the program, in the frames that its holder reads."""
        try:
            pipe = os.open(self.jobs.directory(self.job) / "input", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # it has ended
            return
        given = 0
        try:
            while not self._gone.is_set():
                piece = bytes(self._input[:_PIECE])
                del self._input[:_PIECE]
                last = self._ended and not self._input
                await self._write(pipe, holder_files.input_frames(given, piece, last))
                given += len(piece)
                if last:
                    return
                if self._paused and len(self._input) <= _WAITING // 2:
                    self._paused = False
                    self._channel.resume_reading()
                if not self._input:
                    self._more.clear()
                    if not self._ended:
                        await self._more.wait()
        except BrokenPipeError:
            pass  # it has ended
        finally:
            os.close(pipe)

    async def _write(self, pipe: int, frames: Iterable[bytes]) -> None:
        """Each at once: a frame that fits is never written in part."""
        loop = asyncio.get_running_loop()
        for frame in frames:
            while not self._gone.is_set():
                try:
                    os.write(pipe, frame)
                    break
                except BlockingIOError:
                    await self._ready(pipe, loop.add_writer, loop.remove_writer)

    async def _ready(self, fd: int, add: Callable[..., None], remove: Callable[[int], object]) -> None:
        """Returns when the descriptor is ready, or the client gone."""
        ready = asyncio.Event()
        add(fd, ready.set)
        try:
            await self._set(ready)
        finally:
            remove(fd)

    async def _set(self, event: asyncio.Event) -> None:
        """Returns when the event is set, or the client gone."""
        if event.is_set() or self._gone.is_set():
            return
        waits = [asyncio.create_task(one.wait()) for one in (event, self._gone)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _end(self) -> Job:
        """The job, which has ended: its holder ends when the program has, or nobody reads its output any more."""
        while (job := self.jobs.poll(self.job)).state not in ENDED:
            holder_files.await_end(self.jobs.directory(self.job), _SECONDS)
        return job

    def _forget(self) -> None:
        try:
            self._end()
            self.jobs.forget(self.job)
        except WherryError:
            pass  # its cluster is gone, and the job with it; or it is removed with others that have ended
        except Exception:
            log.exception("job %s is not forgotten", self.job)

    @property
    def jobs(self) -> Jobs:
        """The jobs of the instance. WRONG_STATE without a fabric."""
        return self.place.context.require_managers().jobs
