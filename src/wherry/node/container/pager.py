"""The programs of a move's memory: `wherry-pager send` at the source, `wherry-pager receive` at the destination.

    send                                 receive
    ready PROCESSES BYTES                ready
    < round                              round N
    round N SENT PAGES ZERO DIRTY MS     (DIRTY is -1 where it is not known)
    < last  (the node is frozen)
    hidden COUNT   CRIU may dump now
    last SENT PAGES ZERO MS              last N         every page is here
                                         restored N     CRIU's restore has handed over its processes
                                         < objects
                                         objects N BYTES MS   shared memory and huge pages have their contents
                                         < thawed
                                         filled BYTES MS   and it ends

With post-copy `< post-copy` replaces `< last`: the destination has a list of the pages that are left, and asks for
them; after `< thawed` all are sent. Then `receive` prints `fetched ASKED OTHERS MS` before `filled`, and both end. From
`post-copy` on `send` lives in a cgroup, where the next daemon finds it.

Each line is an answer on standard output; those with `<` are commands. The bytes between them: native/pager/stream.h.
See docs/design/0020-pager.md.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.fabric.cgroup import Cgroup
from wherry.model.records import Fetched
from wherry.node.container.deaths import how_it_ended, how_to_say
from wherry.node.container.progress_bounds import CHECK_INTERVAL, ProgressProbe, StallTimeout, round_trip, work_of
from wherry.node.container.streams import SenderGroup
from wherry.node.container.tracking import Tracking, chosen
from wherry.node.container.tunnel import readable

_MAX_ANSWER = 4096
"""Bytes of an answer."""
_PAGE = 4096
_STALL, _TOTAL = "--fetch-stall", "--fetch-total"
"""Options of a receiver that may have to fetch pages, in seconds."""


def obstacle() -> str:
    """Why this machine's kernel cannot track writes for the pager; empty when it can, in whatever way."""
    return chosen().obstacle


def fetch_timeouts(pids: Iterable[int]) -> tuple[float, float] | None:
    """Seconds without a page, and in all, after which the receiver among these processes gives a node up; None when it
    does not fetch."""
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            return float(words[words.index(_STALL) + 1]), float(words[words.index(_TOTAL) + 1])
    return None


def _each(option: str, numbers: Iterable[int]) -> list[str]:
    return [word for number in numbers for word in (option, str(number))]


class ConversingProgram:
    """A program with a conversation of lines. Invariant: it has ended when `close` returns."""

    what = ""

    def __init__(self, argv: Sequence[str], ends: Sequence[int], key: bytes = b"") -> None:
        """`ends` are descriptors that it inherits. It reads the `key`, if there is one, from one more."""
        with readable(key) as keys:
            self._process = subprocess.Popen(
                [*argv, *_each("--key", keys)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(*ends, *keys),
                process_group=0,  # not ended by a terminal's Ctrl-C
            )
        self._said, self._last_words = b"", ""
        try:
            self._death = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise

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

    def answer(self, word: str, timeout: StallTimeout) -> list[float]:
        """The numbers of the next answer, which begins with `word`. MOVE_FAILED when the program ends instead."""
        assert self._process.stdout
        output, ready = self._process.stdout.fileno(), select.poll()
        ready.register(output, select.POLLIN)
        ready.register(self._death, select.POLLIN)
        while b"\n" not in self._said:
            found = dict(ready.poll(CHECK_INTERVAL * 1000))
            if not found:
                timeout.check()
                continue
            more = os.read(output, _MAX_ANSWER) if output in found else b""  # a child of it may keep the pipe open
            self._said += more
            if not more or len(self._said) > _MAX_ANSWER:
                raise self._failed()
        line, _, self._said = self._said.partition(b"\n")
        first, *numbers = line.decode(errors="replace").split()
        if first != word:
            what = f"the {self.what} answered {line.decode(errors='replace')!r} instead of {word}"
            raise Failed(Code.MOVE_FAILED, what, "", "report this")
        return [float(number) for number in numbers]

    def problem(self) -> str:
        """Why it ended too early; empty while it runs, and when it has ended well."""
        if self._process.returncode is None and not how_it_ended(self._process, told=False):
            return ""
        return "" if self._process.returncode == 0 else str(self._failed())

    def work(self) -> ProgressProbe:
        """A probe of the program."""
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
            return Failed(Code.MOVE_FAILED, f"the {self.what} was ended", self._last_words)
        self._process.kill()
        self._process.wait()
        os.set_blocking(self._process.stderr.fileno(), False)  # a child of it may keep the pipe open
        why = (self._process.stderr.read() or b"").decode(errors="replace").strip()
        self._last_words = self._last_words or why or how_to_say(self._process.returncode)
        what = f"the {self.what} ended early"
        return Failed(Code.MOVE_FAILED, what, self._reason(self._last_words), "the same command again")

    def _reason(self, said: str) -> str:
        """Why it ended, from its output."""
        return said


class PageSender(ConversingProgram):
    """The source's program. It tracks the writes of every process of the node until `close`."""

    what = "program that sends the memory"

    def __init__(
        self,
        ends: Sequence[socket.socket],
        tasks: str,
        skip_list: Path,
        tracking: Tracking | None = None,
        key: bytes = b"",
        compressed: bool = False,
    ) -> None:
        """Takes over `ends`. `tasks` is the cgroup.procs file of the node; `skip_list` names the mappings that CRIU
        need not look at, from `begin_last` on. `tracking`: how, None for the best way. With a `key` all is sealed."""
        self.stream, self._compressed = SenderGroup("memory", ends), compressed
        words = ["send", *(("--tracking", tracking) if tracking else ()), "--tasks", tasks, "--hidden", str(skip_list)]
        words += [*(["--compress"] if compressed else []), *_each("--stream", self.stream.filenos())]
        try:
            super().__init__([str(native_program("wherry-pager")), *words], self.stream.filenos(), key)
        except BaseException:
            self.stream.close()
            raise

    def await_ready(self, timeout: StallTimeout) -> None:
        """Returns when writes are tracked."""
        self.answer("ready", timeout)

    def round(self, timeout: StallTimeout) -> int | None:
        """Sends the dirty pages of the time since the last round, while the node runs; the bytes that were written
        meanwhile, or their compressed size when they are as compressible as those of this round. None where only the
        next round finds them."""
        self.tell("round")
        _, sent, pages, *_, dirty, _ = self.answer("round", timeout)
        if dirty < 0:
            return None
        return int(dirty * min(1.0, sent / (pages * _PAGE)) if self._compressed and pages else dirty)

    def begin_last(self, timeout: StallTimeout, group: Cgroup | None = None) -> None:
        """The node is frozen: returns when CRIU may dump it, while the dirty pages of the time since the last round are
        sent. With a `group` it is fetched later, by the destination, for which the program lives on in there, also
        without us."""
        if group:
            group.create()
            group.add(self.pid)
        self.tell("post-copy" if group else "last")
        self.answer("hidden", timeout)

    def end_last(self, timeout: StallTimeout) -> None:
        """Returns when all of the node's memory is at the destination, or it has the list of the pages to fetch."""
        self.answer("last", timeout)

    def thawed(self) -> None:
        """Tells it that the node runs at the destination."""
        self.tell("thawed")

    def close(self) -> None:
        super().close()
        self.stream.close()


class PageReceiver(ConversingProgram):
    """The destination's program. When the node runs, it lives on until all memory is where it belongs, also without
    this process; it is found in `group`."""

    what = "program that receives the memory"

    def __init__(
        self,
        ends: Sequence[socket.socket],
        path: Path,
        tasks: str,
        group: Cgroup,
        netns: str,
        key: bytes = b"",
        timeouts: tuple[float, float] | None = None,
    ) -> None:
        """Takes over `ends`. `path` is where CRIU's restore looks for its page server, `tasks` the cgroup.procs file of
        the node. With a `key` it takes only data that is sealed with that. `timeouts`: see `fetch_timeouts`."""
        group.create()
        self._group = group
        self.round_trip = max(map(round_trip, ends))
        """Round-trip time in seconds when the program was started."""
        joined = [word for file in group.procs_files() for word in ("--cgroup", file)]
        enter = [str(native_program("wherry-ns")), "--net", netns, *joined, "--"]
        words = ["receive", "--socket", str(path), "--tasks", tasks]
        if timeouts:
            words += [_STALL, str(math.ceil(timeouts[0])), _TOTAL, str(math.ceil(timeouts[1]))]
        with contextlib.ExitStack() as closed:
            inherited = [closed.enter_context(end).fileno() for end in ends]
            words += _each("--stream", inherited)
            super().__init__([*enter, str(native_program("wherry-pager")), *words], inherited, key)

    def await_ready(self, timeout: StallTimeout) -> None:
        """Returns when CRIU's restore may begin."""
        self.answer("ready", timeout)

    def await_last(self, rounds: int, timeout: StallTimeout) -> None:
        """Returns when every page is here."""
        for _ in range(rounds):
            self.answer("round", timeout)
        self.answer("last", timeout)

    def await_restored(self, timeout: StallTimeout) -> None:
        """Returns when CRIU has handed over the memory of all processes."""
        self.answer("restored", timeout)

    def fill_objects(self, timeout: StallTimeout) -> None:
        """Returns when the restored processes, which are frozen, have their shared memory and the contents of their
        huge pages."""
        self.tell("objects")
        self.answer("objects", timeout)

    def fetched(self) -> Fetched | None:
        """When it has ended: its counts of fetched pages; None when it had to fetch nothing."""
        assert self._process.stdout
        if self._process.stdout.closed:
            return None
        os.set_blocking(self._process.stdout.fileno(), False)  # its guard may keep the pipe open
        self._said += self._process.stdout.read() or b""
        for line in self._said.decode(errors="replace").splitlines():
            word, *numbers = line.split()
            if word == "fetched" and len(numbers) == 3:
                demanded, background, milliseconds = map(int, numbers)
                return Fetched(demanded=demanded, background=background, seconds=milliseconds / 1000)
        return None

    def _reason(self, said: str) -> str:
        return "the host is out of memory" if self._group.out_of_memory() else said

    def thawed(self) -> None:
        """Tells it that the node runs."""
        self.tell("thawed")
