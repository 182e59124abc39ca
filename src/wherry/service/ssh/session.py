"""One session of SSH: a program on a node, as a job of kind `exec` whose output goes straight to the client.

Invariants: the program is started by the same commands, with the same rights, as by `POST /v1/nodes/NAME/exec`;
neither side holds more than its buffers, so a client that does not read keeps its program waiting; the program is ended
when the session is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from signal import Signals
from typing import TypeVar, get_args

import asyncssh
from asyncssh.constants import EXTENDED_DATA_STDERR

from wherry.base.acting import acting
from wherry.base.bytes_text import to_text
from wherry.base.errors import Bug, Code, Failed, WherryError, from_dict
from wherry.job import holder_files
from wherry.job.job_end import ENDED
from wherry.job.jobs import Jobs
from wherry.job.live_streams import OutputFrames
from wherry.model.accounts import NODE_HOME, NODE_USER
from wherry.model.job_request import ExecRequest, SignalName, Terminal
from wherry.model.records import Job, JobState, OperationState
from wherry.service.account_caller import AccountCaller
from wherry.service.audit import Audit
from wherry.service.commands import Commands
from wherry.service.context import ServiceContext
from wherry.service.exec_commands import ExecCommands
from wherry.service.rest.authorization import RULES, require_allowed, require_role

log = logging.getLogger("wherry.ssh")
_PASSED_VARIABLES = ("LANG", "LC_", "COLORTERM", "NO_COLOR")
"""Beginnings of the variables that a client may set, as with Debian's sshd."""
_SFTP = " ".join(f"/usr/{at}/sftp-server" for at in ("lib/openssh", "libexec/openssh", "lib/ssh", "libexec"))
_SHELL = "cd 2>/dev/null; [ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l"
_COMMAND = 'cd 2>/dev/null; exec /bin/sh -c "$1"'
_SUBSYSTEM = (
    f"cd 2>/dev/null; for p in {_SFTP}; do [ -x $p ] && exec $p; done; "
    "echo 'wherry: this node has no sftp-server; Debian has it in openssh-sftp-server' >&2; exit 127"
)
_PIECE, _WAITING = 1 << 16, 1 << 20
"""Bytes that are read at once, and that wait for the program before the client is asked to wait."""
_KEYS = 1 << 14
"""Most bytes in a frame for a terminal."""
_SECONDS = 30.0
_FAILED = 255
"""Exit code where none is of the program, as with OpenSSH."""


_T = TypeVar("_T")
_UNDER_WAY = (OperationState.WAITING, OperationState.RUNNING)


class NodeSession(asyncssh.SSHServerSession[bytes]):
    """A session on `node`. `caller` gives the account as it is now, and is called in a thread."""

    def __init__(
        self, context: ServiceContext, audit: Audit, executor: Executor, node: str,
        caller: Callable[[], AccountCaller],
    ) -> None:  # fmt: skip
        self._context, self._audit, self._executor, self._node, self._caller = context, audit, executor, node, caller
        self._words: tuple[str, ...] = ()
        self._terminal: Terminal | None = None
        self._type = ""
        self._input = bytearray()
        self._ended = self._paused = False
        """Whether the client sends no more, and whether it is asked to wait."""
        self._more, self._writable, self._gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._job = ""
        self._task: asyncio.Task[None] | None = None

    # Called by asyncssh.

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """The channel of the session."""
        self._channel = chan

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        """The program is to have a terminal, with the usual modes."""
        self._type, self._terminal = term_type, _terminal(term_size[0], term_size[1])
        return True

    def shell_requested(self) -> bool:
        """The node's shell."""
        self._words = ("/bin/sh", "-c", _SHELL)
        return True

    def exec_requested(self, command: str) -> bool:
        """A line for the node's shell."""
        self._words = ("/bin/sh", "-c", _COMMAND, "sh", to_text(command))
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """SFTP, by the server that the node has."""
        self._words = ("/bin/sh", "-c", _SUBSYSTEM)
        return subsystem == "sftp"

    def session_started(self) -> None:
        """All is known that the client asks for."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Input for the program: as it is, or in frames of keys."""
        if self._terminal:
            for at in range(0, len(data), _KEYS):
                keys = data[at : at + _KEYS]
                self._input += b"D" + struct.pack(">H", len(keys)) + keys
        else:
            self._input += data
        self._more.set()
        if len(self._input) > _WAITING:
            self._paused = True
            self._channel.pause_reading()

    def eof_received(self) -> bool:
        """The end of the input; the output continues. To a terminal it is nothing: the end of its input hangs it up."""
        self._ended = self._terminal is None
        self._more.set()
        return True

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """The size goes where the keys go."""
        if self._terminal:
            size = _terminal(width, height)
            self._input += b"W" + struct.pack(">HHH", 4, size.rows, size.columns)
            self._more.set()

    def signal_received(self, signal: str) -> None:
        """A signal for the program, once it runs."""
        if self._job and signal in get_args(SignalName):
            loop = asyncio.get_running_loop()
            loop.run_in_executor(self._executor, self._send_signal, self._job, Signals[f"SIG{signal}"])

    def pause_writing(self) -> None:
        """The client does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It reads again."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The session is over: so is the program."""
        self._gone.set()
        self._writable.set()
        self._more.set()

    @property
    def is_over(self) -> bool:
        """True when nothing of it is left, or it has not begun and never will."""
        return self._task.done() if self._task else self._gone.is_set()

    async def settled(self) -> None:
        """Returns when its program is ended and forgotten."""
        if self._task:
            await asyncio.wait([self._task])

    # The program.

    async def _run(self) -> None:
        """The life of the program, from its start to its exit code."""
        reader, code = -1, _FAILED
        feeding: asyncio.Task[None] | None = None
        try:
            reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                self._job = await self._in_thread(self._start, writer)
            finally:
                os.close(writer)
            feeding = asyncio.create_task(self._feed())
            await self._pass_output(reader)
            os.close(reader)  # a program whose client is gone is ended by it
            reader = -1
            code = self._code(await self._in_thread(self._end))
        except WherryError as error:
            self._tell(error)
        except Exception as error:
            log.exception("a session on %s failed", self._node)
            self._tell(Bug("the session failed in an unforeseen way", str(type(error).__name__)))
        finally:
            if feeding:
                feeding.cancel()
            if reader >= 0:
                os.close(reader)
            if self._job:
                await self._in_thread(self._forget)
            with suppress(OSError):
                self._channel.exit(code)

    async def _in_thread(self, act: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, act, *arguments)

    def _start(self, writer: int) -> str:
        """The id of the job, which runs. WherryError."""
        caller = self._caller()
        token = acting.set(caller.who)
        operation, outcome = "", ""
        try:
            rule = RULES["POST", "/v1/nodes/{name}/exec"]
            require_role(caller, rule, f"SSH to {self._node}")
            require_allowed(caller, rule, self._context)
            commands = Commands(self._context, caller)
            owner = commands.program_owner(None, commands.cluster_of(self._node))
            request = ExecRequest(
                node=self._node, argv=self._words, owner=owner, env=self._environment(), input=True,
                terminal=self._terminal,
            )  # fmt: skip
            operation = ExecCommands(self._context, caller).start(request, writer).id
            while (found := self._context.operations.wait(operation, _SECONDS)).state in _UNDER_WAY:
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
            path = f"/{self._node}"
            self._audit.write(caller.who, caller.address, "SSH", path, status, location, code=outcome)

    def _environment(self) -> dict[str, str]:
        given = {to_text(name): to_text(value) for name, value in self._channel.get_environment().items()}
        passed = {name: value for name, value in given.items() if name.startswith(_PASSED_VARIABLES)}
        own = {"HOME": NODE_HOME, "USER": NODE_USER, "LOGNAME": NODE_USER}
        return {**passed, **own, **({"TERM": self._type} if self._terminal else {})}

    async def _pass_output(self, reader: int) -> None:
        """Until the program has closed its streams, or the client is gone."""
        frames, loop = OutputFrames(), asyncio.get_running_loop()
        while not self._gone.is_set():
            await self._writable.wait()
            try:
                piece = os.read(reader, _PIECE)
            except BlockingIOError:
                await self._ready(reader, loop.add_reader, loop.remove_reader)
                continue
            if not piece:
                return
            for stream, data in frames.feed(piece):
                self._channel.write(data, EXTENDED_DATA_STDERR if stream == "stderr" else None)
            await asyncio.sleep(0)

    async def _feed(self) -> None:
        """Gives the client's input to the program, in the frames that its holder reads."""
        try:
            pipe = os.open(self._jobs.directory(self._job) / "input", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # it has ended
            return
        given = 0
        try:
            while not self._gone.is_set():
                piece, self._input = bytes(self._input[:_PIECE]), self._input[_PIECE:]
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
        waits = [asyncio.create_task(event.wait()) for event in (ready, self._gone)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            remove(fd)
            for wait in waits:
                wait.cancel()

    def _end(self) -> Job:
        """The job, which has ended: its holder ends when the program has, or nobody reads its output any more."""
        while (job := self._jobs.poll(self._job)).state not in ENDED:
            holder_files.await_end(self._jobs.directory(self._job), _SECONDS)
        return job

    def _code(self, job: Job) -> int:
        """The exit code for the client, which also gets the reason of a failed job."""
        if job.state is JobState.FAILED or job.exit_code is None:
            next = job.next or f"wherry job show {job.id}"
            self._tell(Failed(Code.JOB_FAILED, "the program was ended", job.reason, next))
        return _FAILED if job.exit_code is None else job.exit_code

    def _forget(self) -> None:
        try:
            self._end()
            self._jobs.forget(self._job)
        except WherryError:
            pass  # its cluster is gone, and the job with it; or it is removed with others that have ended

    def _send_signal(self, id: str, number: Signals) -> None:
        with suppress(WherryError):
            self._jobs.send_signal(id, number, _SECONDS)

    def _tell(self, error: WherryError) -> None:
        more = {"why": error.why, "next": error.next}
        lines = [f"error {error.code}: {error.what}", *(f"  {name}: {text}" for name, text in more.items() if text)]
        with suppress(OSError):
            self._channel.write("".join(f"{line}\r\n" for line in lines).encode(), EXTENDED_DATA_STDERR)

    @property
    def _jobs(self) -> Jobs:
        return self._context.require_managers().jobs


def _terminal(columns: int, rows: int) -> Terminal:
    """A size that a client sent: one without a terminal of its own sends 0."""
    return Terminal(rows=min(rows, 65535) or 24, columns=min(columns, 65535) or 80)
