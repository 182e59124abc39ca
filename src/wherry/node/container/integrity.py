"""That what arrived by a move is what was sent: memory, images and files, before the move is committed.

    source                                     destination
    wherry-verify compare  <--- records ---    wherry-verify list
    (the frozen processes, their files)        (images, files)
                           --- memory ---->    wherry-verify mend
                                               (the frozen processes)

TCP's checksum lets a damaged packet through now and then, images lie in memory for a moment, and a dirty page that a
round lost would be a wrong result that nobody sees. The first two programs wait before the freeze. The list is made
before CRIU takes the images apart; the comparison goes on while CRIU restores. A little memory that differs is sent
again, on the way back of the same connection. Invariant: when `close` returns, all are gone.
"""

from __future__ import annotations

import logging
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.node.container.progress_bounds import Bound, said_at_end, work_of

_DIFFERENT, _SENT_AGAIN = 1, 2
log = logging.getLogger("wherry.verify")


class IntegrityCheck:
    """One comparison, ready to begin. `ends` is a connection from the destination to the source; it is taken over."""

    def __init__(
        self,
        ends: tuple[socket.socket, socket.socket],
        source: tuple[Path, Path],
        destination: tuple[Path, Path],
        tasks: str,
    ) -> None:
        """`source` and `destination` are each the images of the last pass and the node's private tree."""
        near, far = ends
        self._near = near
        with far:
            self._list = _program("list", *map(str, destination), stdin=subprocess.PIPE, stdout=near.fileno())
            self._compare = _program("compare", *map(str, source), tasks, stdin=far.fileno(), stdout=far.fileno())

    def list(self, bound: Callable[..., Bound]) -> None:
        """Returns when everything that arrived is summed up; CRIU may take the images from then on."""
        why = said_at_end(self._list, bound(work_of(lambda: [self._list.pid, self._compare.pid])), b"\n")
        if self._list.returncode:
            raise Failed(Code.MOVE_FAILED, "what arrived cannot be read", why.decode(errors="replace").strip())

    def require_same(self, tasks: str, bound: Callable[..., Bound]) -> None:
        """Failed when more differs from the source, which is still frozen, than could be mended in the restored
        processes, which `tasks` (a cgroup.procs) tells."""
        code, what = self._ended(self._compare, bound)
        if code == _SENT_AGAIN:
            mend = _program("mend", tasks, stdin=self._near.fileno(), stdout=subprocess.DEVNULL)
            code, why = self._ended(mend, bound)
            if not code:
                log.warning("sent again: %s", what)
                return
            code, what = _DIFFERENT, f"{what}; {why}"
        if code:
            raise Failed(
                Code.MOVE_FAILED,
                "what arrived is not what was sent" if code == _DIFFERENT else "what was sent cannot be compared",
                what,
                "repeat the move; if it happens again, test the memory and the network of both hosts",
            )

    def close(self) -> None:
        """Ends the programs. Idempotent."""
        for process in (self._list, self._compare):
            _end(process)
        self._near.close()

    @staticmethod
    def _ended(process: subprocess.Popen[bytes], bound: Callable[..., Bound]) -> tuple[int, str]:
        """Exit code of a program and what it wrote."""
        try:
            said = said_at_end(process, bound(work_of(lambda: [process.pid])))
        except BaseException:
            _end(process)
            raise
        return process.returncode, said.decode(errors="replace").strip()


def _program(act: str, *words: str, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(native_program("wherry-verify")), act, *words], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()
