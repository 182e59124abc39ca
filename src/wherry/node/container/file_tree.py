"""The programs of a node's private files: `wherry-tree send` at the source, `wherry-tree receive` at the destination.
A node with a disk has a pair for that besides.

    send                                 receive
    ready
    < round
    round N SENT INODES MS
    < last  (the node is frozen)         last N COUNT    the tree equals the source's; it ends
    last N SENT INODES MS, and it ends

Each line is an answer on standard output; those with `<` are commands. A pass sends the changes since the one before;
in the last one every page of every file is compared. All data written at the destination is read again, and the
checksum of all is compared before `last`. The bytes between them: native/tree/wire.h. See docs/design/0024-files.md.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from wherry.base.paths import native_program
from wherry.fabric.cgroup import Cgroup
from wherry.node.container.pager import ConversingProgram
from wherry.node.container.progress_bounds import StallTimeout, round_trip
from wherry.node.container.streams import Sender

_SMALL = 2**20
"""Bytes that another pass need not take out of the freeze."""
_GAIN = 0.5
"""Passes of a round continue while each sends at most this share of the bytes of the one before it."""
_PASSES = 4


class TreeSender(ConversingProgram):
    """The source's program."""

    what = "program that sends the files"

    def __init__(self, end: socket.socket, directory: Path, size: int = 0, on_disk: bool = False) -> None:
        """Takes over `end`, the connection. `directory` has the node's files, `size` bytes of them at most."""
        self.stream, self.size, self._again = Sender("files", end), size, 0.0
        words = [str(native_program("wherry-tree")), "send", str(directory), str(end.fileno())]
        super().__init__([*words, *(["disk"] if on_disk else [])], [end.fileno()])

    def await_ready(self, timeout: StallTimeout) -> None:
        """Returns when it can begin."""
        self.answer("ready", timeout)

    def round(self, timeout: StallTimeout) -> int:
        """Sends the changes, while the node runs, again and again while that gains: its files are sent sooner than its
        memory. The bytes that its last pass sent, about as many as have changed since then; 0 when they are few. Files
        of which few had changed are not read again before as much time has passed as that took."""
        if time.monotonic() < self._again:
            return 0
        sent, took = self._timed(timeout)
        for _ in range(_PASSES - 1):
            if sent <= _SMALL:
                break
            before, (sent, took) = sent, self._timed(timeout)
            if sent > _GAIN * before:
                break
        if sent > _SMALL:
            return sent
        self._again = time.monotonic() + took
        return 0

    def last(self, timeout: StallTimeout, everything: bool = False) -> int:
        """The node is frozen: returns when the destination has all its files; the bytes that were sent for it. Of a
        disk `everything` is compared, also files whose times have not changed."""
        return self._pass("all" if everything else "last", timeout)

    def cut(self) -> None:
        """Ends the program, and with the connection the other one."""
        self.stream.cut()
        self._process.kill()  # it sends nothing, and sees no end, while it compares what has not changed

    def close(self) -> None:
        super().close()
        self.stream.close()

    def _timed(self, timeout: StallTimeout) -> tuple[int, float]:
        """The bytes that a pass of a round sent, and its seconds."""
        began = time.monotonic()
        return self._pass("round", timeout), time.monotonic() - began

    def _pass(self, command: str, timeout: StallTimeout) -> int:
        self.tell(command)
        _, sent, *_ = self.answer(command, timeout)
        return int(sent)


class TreeReceiver(ConversingProgram):
    """The destination's program. It runs for the whole move, and writes where the files shall be."""

    what = "program that receives the files"

    def __init__(self, end: socket.socket, directory: Path, staging: Path, group: Cgroup, size: int = 0) -> None:
        """Takes over `end`. `directory` is where the files, of at most `size` bytes, shall be; `staging`, beside it, is
        there until all is. They count as memory of `group`."""
        group.create()
        self.size = size
        self.round_trip = round_trip(end)
        """Round-trip time in seconds when the program was started."""
        joined = [word for file in group.procs_files() for word in ("--cgroup", file)]
        enter = [str(native_program("wherry-ns")), *joined, "--"]
        with end:
            words = [str(native_program("wherry-tree")), "receive", str(directory), str(staging), str(end.fileno())]
            super().__init__([*enter, *words], [end.fileno()])

    def await_last(self, timeout: StallTimeout) -> None:
        """Returns when all is here, and equal to the source's. MOVE_FAILED when it is not."""
        self.answer("last", timeout)
