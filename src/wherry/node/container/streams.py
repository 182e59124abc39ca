"""What a move sends, each over its own connection: directory trees by tar, memory pages by CRIU's page server.

The receiving program waits at the destination before the freeze. `finish` returns only when the receiver said that it
has everything, so a cut connection is an error of the move and not a surprise of the restore.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from wherry.base.errors import Code, Failed
from wherry.node.container.progress_bounds import Bound, Sign, round_trip, said_at_end, traffic_of, work_of

_TCPI_BYTES_SENT = 200
"""Offset of tcpi_bytes_sent and tcpi_bytes_retrans (u64) in struct tcp_info, linux/tcp.h."""
_SO_MAX_PACING_RATE = 47
"""asm-generic/socket.h; bytes per second as u64. The kernel paces TCP itself, with any queue discipline."""
_SEND = ("tar", "--create", "--file=-", "--sparse", "--numeric-owner", "--warning=no-file-ignored")
_RECEIVE = (
    "tar",
    "--extract",
    "--file=-",
    "--read-full-records",
    "--preserve-permissions",
    "--same-owner",
    "--numeric-owner",
)


class Stream:
    """One connection and the program that reads its far end."""

    def __init__(
        self, what: str, ends: tuple[socket.socket, socket.socket], receiver: Sequence[str], stdin: bool
    ) -> None:
        self.what = what
        self._near, far = ends
        self._before = _sent(self._near)
        with far:
            argv = [word.replace("{fd}", str(far.fileno())) for word in receiver]
            self._receiver = subprocess.Popen(
                argv,
                stdin=far.fileno() if stdin else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=() if stdin else (far.fileno(),),
            )

    def fileno(self) -> int:
        """The sending end, for a program that inherits it."""
        return self._near.fileno()

    def limit_rate(self, rate: float) -> None:
        """The most that goes out from now on, in bit/s, also while another program sends."""
        set_rate_limit(self._near, rate)

    def round_trip(self) -> float:
        """Seconds of a round trip."""
        return round_trip(self._near)

    def signs(self) -> tuple[Sign, Sign]:
        """Progress of what is sent, and of the program that receives it."""
        return traffic_of(self._near), work_of(lambda: [self._receiver.pid])

    def sent(self) -> int:
        """Bytes that have gone out so far."""
        return _sent(self._near) - self._before

    def cut(self) -> None:
        """Makes whoever sends over it fail."""
        with contextlib.suppress(OSError):  # it is broken already
            self._near.shutdown(socket.SHUT_RDWR)

    def uncork(self) -> None:
        """Makes the kernel send what it holds back."""
        self._near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

    def send_tree(self, directory: Path, bound: Callable[..., Bound]) -> None:
        """Sends a directory tree: files with holes, links, devices, owners, modes and times. Sockets stay behind.

        `bound` makes the bound of it from signs of progress.
        """
        sender = subprocess.Popen(
            [*_SEND, f"--directory={directory}", "."],
            stdin=subprocess.DEVNULL,
            stdout=self._near.fileno(),
            stderr=subprocess.PIPE,
        )
        try:
            said = said_at_end(sender, bound(*self.signs(), work_of(lambda: [sender.pid])))
        except BaseException:
            sender.kill()
            sender.communicate()
            raise
        if sender.returncode:
            why = "its connection was cut" if sender.returncode == -signal.SIGPIPE else _last_line(said)
            raise Failed(Code.MOVE_FAILED, f"the {self.what} was not sent", why)

    def finish(self, bound: Callable[..., Bound]) -> int:
        """Ends the sending side and waits for the receiver's good end; bytes that it got."""
        try:
            self._near.shutdown(socket.SHUT_WR)
            said = said_at_end(self._receiver, bound(*self.signs()))
        except OSError as error:
            raise Failed(Code.MOVE_FAILED, f"the connection for the {self.what} broke", str(error)) from None
        if self._receiver.returncode:
            raise Failed(Code.MOVE_FAILED, f"the destination did not get the {self.what} whole", _last_line(said))
        sent = self.sent()
        self._near.close()
        return sent

    def close(self) -> None:
        """Ends connection and receiver. Idempotent."""
        self._near.close()
        if self._receiver.poll() is None:
            self._receiver.kill()
        self._receiver.communicate()


class RateLimited(Protocol):
    """What sends, and can be told how fast."""

    def limit_rate(self, rate: float) -> None:
        """The most that goes out from now on, in bit/s."""


class RateLimit:
    """Divides what a move may send (bit/s; None: no limit) among what it sends at the same time."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._sending: list[RateLimited] = []

    @contextmanager
    def sending(self, stream: RateLimited) -> Iterator[None]:
        """It has its share meanwhile; what it still holds at the end goes out at the whole rate."""
        self._divide([stream], [])
        try:
            yield
        finally:
            self._divide([], [stream])

    def _divide(self, more: list[RateLimited], gone: list[RateLimited]) -> None:
        with self._lock:
            self._sending = [stream for stream in [*self._sending, *more] if stream not in gone]
            if self.rate is not None:
                for stream in gone:
                    stream.limit_rate(self.rate)
                for stream in self._sending:
                    stream.limit_rate(self.rate / len(self._sending))


def set_rate_limit(end: socket.socket, rate: float) -> None:
    """The most that goes out of a TCP connection from now on, in bit/s."""
    end.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", max(1, round(rate / 8))))


def receive_tree(directory: Path) -> list[str]:
    """The receiver of `send_tree`."""
    return [*_RECEIVE, f"--directory={directory}"]


class BackgroundTask:
    """An act in a thread of its own; `result` waits and raises what it raised."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._act = act
        self._thread = threading.Thread(target=self._run, name="stream")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._act()
        except BaseException as error:  # handed over by result()
            self._error = error

    def result(self) -> None:
        """Returns when the act is done."""
        self._thread.join()
        if self._error is not None:
            raise self._error


def _sent(end: socket.socket) -> int:
    """Bytes that have gone out of a TCP connection, each counted once."""
    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    all_, again = struct.unpack_from("=QQ", info, _TCPI_BYTES_SENT)
    return int(all_ - again)


def _last_line(text: bytes) -> str:
    """The last line that gives a reason, which tar's very last one does not."""
    lines = [line for line in text.decode(errors="replace").strip().splitlines() if "exiting now" not in line]
    return lines[-1] if lines else ""
