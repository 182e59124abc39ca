"""End-to-end integrity check of a move before the commit: memory, images and files.

    source                                     destination
    wherry-verify compare  <--- records ---    wherry-verify digest
    (the frozen processes, their files)        (images, files)
                           --- memory ---->    wherry-verify patch
                                               (the frozen processes)

TCP's checksum misses some damaged packets, images are in memory for a moment, and a dirty page that a round lost would
silently corrupt results. The first two programs are started before the freeze. The digest is complete before CRIU
consumes the images; the comparison runs while CRIU restores. A few pages that differ are sent again over the same
connection. Invariant: when `close` returns, all programs have ended.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.node.container.progress_bounds import Bound, await_exit, work_of

_DIFFERENT, _SENT_AGAIN = 1, 2
log = logging.getLogger("wherry.verify")


class IntegrityCheck:
    """One comparison. Takes over `ends`, a connection from the destination to the source."""

    def __init__(
        self,
        ends: tuple[socket.socket, socket.socket],
        source: tuple[Path, Path],
        destination: tuple[Path, Path],
        tasks: str,
    ) -> None:
        """`source` and `destination` are the directory of the last pass's images, and the node's private tree."""
        near, far = ends
        with contextlib.ExitStack() as undo, far:
            self._near = undo.enter_context(near)
            self._digest = _program("digest", *map(str, destination), stdin=subprocess.PIPE, stdout=near.fileno())
            undo.callback(_kill_and_reap, self._digest)
            self._compare = _program("compare", *map(str, source), tasks, stdin=far.fileno(), stdout=far.fileno())
            undo.pop_all()

    def list(self, bound: Callable[..., Bound]) -> None:
        """Returns when the checksums of all received data are complete; CRIU may consume the images from then on."""
        why = await_exit(self._digest, bound(work_of(lambda: [self._digest.pid, self._compare.pid])), b"\n")
        if self._digest.returncode:
            raise Failed(Code.MOVE_FAILED, "the received data cannot be read", why.decode(errors="replace").strip())

    def require_same(self, tasks: str, bound: Callable[..., Bound]) -> None:
        """Failed when the restored processes (listed in `tasks`, a cgroup.procs file) differ from the frozen source in
        more than a few pages, which are sent again."""
        code, what = self._exit_of(self._compare, bound)
        if code == _SENT_AGAIN:
            patch = _program("patch", tasks, stdin=self._near.fileno(), stdout=subprocess.DEVNULL)
            code, why = self._exit_of(patch, bound)
            if not code:
                log.warning("sent again: %s", what)
                return
            code, what = _DIFFERENT, f"{what}; {why}"
        if code:
            raise Failed(
                Code.MOVE_FAILED,
                "the received data differs from the source"
                if code == _DIFFERENT
                else "the received data cannot be compared",
                what,
                "repeat the move; if it happens again, test the memory and the network of both hosts",
            )

    def close(self) -> None:
        """Kills the programs. Idempotent."""
        for process in (self._digest, self._compare):
            _kill_and_reap(process)
        self._near.close()

    @staticmethod
    def _exit_of(process: subprocess.Popen[bytes], bound: Callable[..., Bound]) -> tuple[int, str]:
        """Exit code of a program and its error output."""
        try:
            said = await_exit(process, bound(work_of(lambda: [process.pid])))
        except BaseException:
            _kill_and_reap(process)
            raise
        return process.returncode, said.decode(errors="replace").strip()


def _program(act: str, *words: str, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(native_program("wherry-verify")), act, *words], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE
    )


def _kill_and_reap(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()
