"""That what arrived by a move is what was sent: memory, images and files, before the move is committed.

    source                                     destination
    wherry-verify compare  <--- records ---    wherry-verify list
    (the frozen processes, their files)        (images, files)

TCP's checksum lets a damaged packet through now and then, images lie in memory for a moment, and a dirty page that a
round lost would be a wrong result that nobody sees. Both programs wait before the freeze. The list is made before CRIU
takes the images apart; the comparison goes on while CRIU restores. Invariant: when `close` returns, both are gone.
"""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program

_DIFFERENT = 1


class Verification:
    """One comparison, ready to begin. `ends` is a connection from the destination to the source; it is taken over."""

    def __init__(
        self,
        ends: tuple[socket.socket, socket.socket],
        source: tuple[Path, Path],
        destination: tuple[Path, Path],
        tasks: str,
    ) -> None:
        """`source` and `destination` are each the images of the last pass and the node's private tree."""
        program = str(native_program("wherry-verify"))
        near, far = ends
        with near, far:
            self._list = subprocess.Popen(
                [program, "list", *map(str, destination)],
                stdin=subprocess.PIPE,
                stdout=near.fileno(),
                stderr=subprocess.PIPE,
            )
            self._compare = subprocess.Popen(
                [program, "compare", *map(str, source), tasks],
                stdin=far.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    def list(self, timeout: float) -> None:
        """Returns when everything that arrived is summed up; CRIU may take the images from then on."""
        try:
            _, why = self._list.communicate(b"\n", timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failed(Code.TIMED_OUT, "what arrived was not summed up in time") from None
        if self._list.returncode:
            raise Failed(Code.MOVE_FAILED, "what arrived cannot be read", why.decode(errors="replace").strip())

    def require_same(self, timeout: float) -> None:
        """Failed when anything differs from the source, which is still frozen."""
        try:
            what, why = self._compare.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failed(Code.TIMED_OUT, "what was sent was not compared in time") from None
        if self._compare.returncode:
            different = self._compare.returncode == _DIFFERENT
            raise Failed(
                Code.MOVE_FAILED,
                "what arrived is not what was sent" if different else "what was sent cannot be compared",
                (what if different else why).decode(errors="replace").strip(),
                "repeat the move; if it happens again, test the memory and the network of both hosts",
            )

    def close(self) -> None:
        """Ends both programs. Idempotent."""
        for process in (self._list, self._compare):
            if process.poll() is None:
                process.kill()
            process.communicate()
