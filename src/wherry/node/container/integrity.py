"""End-to-end integrity check of a move before the commit: memory and images; files are file_tree's.

    source                                     destination
    wherry-verify compare  <--- records ---    wherry-verify digest
    (the frozen processes)                     (images)
                           --- memory ---->    wherry-verify patch
                                               (the frozen processes)

TCP's checksum misses some damaged packets, images are in memory for a moment, and a dirty page that a round lost would
silently corrupt results. The first two programs are started before the freeze. The digest is complete before CRIU
consumes the images; the comparison runs while CRIU restores. A few pages that differ are sent again over the same
connection. Invariant: when `close` returns, all programs have ended.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.node.container.deaths import how_it_ended
from wherry.node.container.progress_bounds import StallTimeout, await_exit, reap, work_of

_DIFFERENT, _SENT_AGAIN = 1, 2
_REMEDY = "repeat the move; if it happens again, test the memory and the network of both hosts"


class Digest:
    """The destination's part: checksums of all that has arrived."""

    def __init__(self, end: socket.socket, images: Path) -> None:
        """Takes over `end`, a connection to the source. `images` is the directory of CRIU's images."""
        with contextlib.ExitStack() as undo:
            self._end = undo.enter_context(end)
            self._digest = _program("digest", str(images), stdin=subprocess.PIPE, stdout=end.fileno())
            undo.pop_all()

    @property
    def pid(self) -> int:
        """PID of the program."""
        return self._digest.pid

    def await_complete(self, make_timeout: Callable[..., StallTimeout]) -> None:
        """Returns when the checksums of all received data are complete; CRIU may consume the images from then on."""
        why = await_exit(self._digest, make_timeout(work_of(lambda: [self.pid])), b"\n")
        if self._digest.returncode:
            raise Failed(Code.MOVE_FAILED, "the received data cannot be read", why.decode(errors="replace").strip())

    def patch(self, tasks: str, what: str, make_timeout: Callable[..., StallTimeout]) -> None:
        """Writes the memory `what`, which was sent again, into the restored processes (listed in `tasks`)."""
        code, why = _exit_of(
            _program("patch", tasks, stdin=self._end.fileno(), stdout=subprocess.DEVNULL), make_timeout
        )
        if code:
            raise _difference(f"{what}; {why}")

    def problem(self) -> str:
        """How the program was killed; empty when it was not."""
        how = how_it_ended(self._digest)
        return f"the program that computes checksums of arriving data {how}" if how else ""

    def close(self) -> None:
        """Kills the program. Idempotent."""
        reap(self._digest)
        self._end.close()


class SumComparison:
    """The source's part: the checksums of the frozen processes and the images, compared with the destination's."""

    def __init__(self, end: socket.socket, images: Path, tasks: str) -> None:
        """Takes over `end`, a connection to the destination. `tasks` is the cgroup.procs file of the frozen source."""
        with end:
            self._compare = _program("compare", str(images), tasks, stdin=end.fileno(), stdout=end.fileno())

    @property
    def pid(self) -> int:
        """PID of the program."""
        return self._compare.pid

    def result(self, make_timeout: Callable[..., StallTimeout]) -> str:
        """The memory that differed and was sent again; empty when all is the same. Failed when more differs."""
        code, what = _exit_of(self._compare, make_timeout)
        if code == _SENT_AGAIN:
            return what
        if code == _DIFFERENT:
            raise _difference(what)
        if code:
            raise Failed(Code.MOVE_FAILED, "the received data cannot be compared", what, _REMEDY)
        return ""

    def problem(self) -> str:
        """How the program was killed; empty when it was not."""
        how = how_it_ended(self._compare)
        return f"the program that compares what arrived {how}" if how else ""

    def close(self) -> None:
        """Kills the program. Idempotent."""
        reap(self._compare)


def _difference(what: str) -> Failed:
    return Failed(Code.MOVE_FAILED, "the received data differs from the source", what, _REMEDY)


def _exit_of(process: subprocess.Popen[bytes], make_timeout: Callable[..., StallTimeout]) -> tuple[int, str]:
    """Exit code of a program and its error output."""
    try:
        said = await_exit(process, make_timeout(work_of(lambda: [process.pid])))
    except BaseException:
        reap(process)
        raise
    return process.returncode, said.decode(errors="replace").strip()


def _program(act: str, *words: str, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(native_program("wherry-verify")), act, *words], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE
    )
