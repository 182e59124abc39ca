"""The programs of a move's memory: `wherry-pager send` at the source, `wherry-pager receive` at the destination.

    send                                 receive
    ready PROCESSES BYTES                ready
    < round                              round N
    round N SENT PAGES ZERO DIRTY MS
    < last  (the node is frozen)
    hidden COUNT   CRIU may dump now
    last SENT PAGES ZERO MS              last N         every page is here
                                         restored N     CRIU's restore has handed over its processes
                                         < thawed
                                         filled BYTES MS   and it ends

Each line is an answer on standard output; those with `<` are commands. What the bytes between them are:
native/pager/stream.h. See docs/design/0020-pager.md.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.fabric.cgroup import Cgroup
from wherry.node.container.progress_bounds import LOOK, Bound, Sign, round_trip, work_of
from wherry.node.container.streams import Sender

_LONGEST = 4096
"""Bytes of an answer."""
_PROBE_TIMEOUT = 20.0


@functools.cache
def obstacle() -> str:
    """Why this machine's kernel cannot track writes for the pager; empty when it can."""
    command = [str(native_program("wherry-pager")), "send", "--probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


class _Program:
    """A program with a conversation of lines. Invariant: it has ended when `close` returns."""

    what = ""

    def __init__(self, argv: Sequence[str], end: socket.socket) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(end.fileno(),),
            process_group=0,  # not ended by a terminal's Ctrl-C
        )
        self._said = b""
        self._death = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """The program's PID."""
        return self._process.pid

    def tell(self, command: str) -> None:
        """Writes a command. A program that has ended is found by its answer."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{command}\n".encode())
            self._process.stdin.flush()

    def answer(self, word: str, bound: Bound) -> list[float]:
        """The numbers of the next answer, which begins with `word`. MOVE_FAILED when the program ends instead."""
        assert self._process.stdout
        output, ready = self._process.stdout.fileno(), select.poll()
        ready.register(output, select.POLLIN)
        ready.register(self._death, select.POLLIN)
        while b"\n" not in self._said:
            found = dict(ready.poll(LOOK * 1000))
            if not found:
                bound.look()
                continue
            more = os.read(output, _LONGEST) if output in found else b""  # a child of it may keep the pipe open
            self._said += more
            if not more or len(self._said) > _LONGEST:
                raise self._failed()
        line, _, self._said = self._said.partition(b"\n")
        first, *numbers = line.decode(errors="replace").split()
        if first != word:
            what = f"the {self.what} answered {line.decode(errors='replace')!r} instead of {word}"
            raise Failed(Code.MOVE_FAILED, what, "", "report this")
        return [float(number) for number in numbers]

    def problem(self) -> str:
        """Why it ended; empty while it runs."""
        return "" if self._process.poll() is None else self._failed().why

    def work(self) -> Sign:
        """A sign of progress of the program."""
        return work_of(lambda: [self.pid])

    def close(self) -> None:
        """Kills it. Idempotent."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        if self._death >= 0:
            os.close(self._death)
            self._death = -1
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _failed(self) -> Failed:
        assert self._process.stderr
        if self._process.stderr.closed:
            return Failed(Code.MOVE_FAILED, f"the {self.what} was ended")
        self._process.kill()
        self._process.wait()
        os.set_blocking(self._process.stderr.fileno(), False)  # a child of it may keep the pipe open
        why = (self._process.stderr.read() or b"").decode(errors="replace").strip()
        what = f"the {self.what} ended early"
        return Failed(
            Code.MOVE_FAILED, what, self._reason(why or f"exit {self._process.returncode}"), "wherry event list"
        )

    def _reason(self, said: str) -> str:
        """Why it ended, from what it said."""
        return said


class PageSender(_Program):
    """The source's program. It tracks the writes of every process of the node until `close`."""

    what = "program that sends the memory"

    def __init__(self, end: socket.socket, tasks: str, hidden: Path) -> None:
        """Takes over `end`. `tasks` is the cgroup.procs file of the node; `hidden` names the mappings that CRIU need
        not look at, from `begin_last` on."""
        self.stream = Sender("memory", end)
        words = ("send", "--tasks", tasks, "--hidden", str(hidden), "--stream", str(end.fileno()))
        super().__init__([str(native_program("wherry-pager")), *words], end)

    def await_ready(self, bound: Bound) -> None:
        """Returns when writes are tracked."""
        self.answer("ready", bound)

    def round(self, bound: Bound) -> int:
        """Sends what was written since the last round, while the node runs; the bytes that were written meanwhile."""
        self.tell("round")
        *_, dirty, _ = self.answer("round", bound)
        return int(dirty)

    def begin_last(self, bound: Bound) -> None:
        """The node is frozen: returns when CRIU may dump it, while what was written since the last round is sent."""
        self.tell("last")
        self.answer("hidden", bound)

    def end_last(self, bound: Bound) -> None:
        """Returns when all of the node's memory is at the destination."""
        self.answer("last", bound)

    def close(self) -> None:
        super().close()
        self.stream.close()


class PageReceiver(_Program):
    """The destination's program. When the node runs, it lives on until all memory is where it belongs, also without
    this process; it is found in `group`."""

    what = "program that receives the memory"

    def __init__(self, end: socket.socket, path: Path, tasks: str, group: Cgroup, netns: str) -> None:
        """Takes over `end`. `path` is where CRIU's restore looks for its page server, `tasks` the cgroup.procs file of
        the node."""
        group.create()
        self._group = group
        self.round_trip = round_trip(end)
        """Round-trip time in seconds when the program was started."""
        joined = [word for file in group.procs_files() for word in ("--cgroup", file)]
        enter = [str(native_program("wherry-ns")), "--net", netns, *joined, "--"]
        words = ("receive", "--socket", str(path), "--tasks", tasks, "--stream", str(end.fileno()))
        with end:
            super().__init__([*enter, str(native_program("wherry-pager")), *words], end)

    def await_ready(self, bound: Bound) -> None:
        """Returns when CRIU's restore may begin."""
        self.answer("ready", bound)

    def await_last(self, rounds: int, bound: Bound) -> None:
        """Returns when every page is here."""
        for _ in range(rounds):
            self.answer("round", bound)
        self.answer("last", bound)

    def await_restored(self, bound: Bound) -> None:
        """Returns when CRIU has handed over the memory of all processes."""
        self.answer("restored", bound)

    def _reason(self, said: str) -> str:
        return "the host is out of memory" if self._group.out_of_memory() else said

    def thawed(self) -> None:
        """Tells it that the node runs."""
        self.tell("thawed")
