"""The data streams of a move, one connection each: directory trees by tar, memory pages to CRIU's page server.

The receiving program is started at the destination before the freeze. `finish` returns only when the receiver has
confirmed that it got everything, so a broken connection fails the move before the restore.
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
from wherry.node.container.progress_bounds import Bound, Sign, await_exit, round_trip, traffic_of, work_of

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
        with contextlib.ExitStack() as undo, far:
            undo.enter_context(self._near)
            self._before = _sent(self._near)
            argv = [word.replace("{fd}", str(far.fileno())) for word in receiver]
            self._receiver = subprocess.Popen(
                argv,
                stdin=far.fileno() if stdin else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=() if stdin else (far.fileno(),),
            )
            undo.pop_all()

    def fileno(self) -> int:
        """The sending end, for a program that inherits it."""
        return self._near.fileno()

    def limit_rate(self, rate: float) -> None:
        """Limits the rate from now on (bit/s), also while another program sends over the connection."""
        set_rate_limit(self._near, rate)

    def round_trip(self) -> float:
        """Round-trip time in seconds."""
        return round_trip(self._near)

    def signs(self) -> tuple[Sign, Sign]:
        """Signs of progress of the connection and of the receiving program."""
        return traffic_of(self._near), work_of(lambda: [self._receiver.pid])

    def sent(self) -> int:
        """Bytes sent so far."""
        return _sent(self._near) - self._before

    def cut(self) -> None:
        """Shuts the connection down, so that a sender fails."""
        with contextlib.suppress(OSError):  # it is closed already
            self._near.shutdown(socket.SHUT_RDWR)

    def uncork(self) -> None:
        """Clears TCP_CORK: the kernel sends a partial segment at once."""
        self._near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

    def send_tree(self, directory: Path, bound: Callable[..., Bound]) -> None:
        """Sends a directory tree: files with holes, links, devices, owners, modes and times. Sockets stay behind.

        `bound` makes the step's bound from its signs of progress.
        """
        sender = subprocess.Popen(
            [*_SEND, f"--directory={directory}", "."],
            stdin=subprocess.DEVNULL,
            stdout=self._near.fileno(),
            stderr=subprocess.PIPE,
        )
        try:
            said = await_exit(sender, bound(*self.signs(), work_of(lambda: [sender.pid])))
        except BaseException:
            sender.kill()
            sender.communicate()
            raise
        if sender.returncode:
            why = "its connection was cut" if sender.returncode == -signal.SIGPIPE else _last_line(said)
            raise Failed(Code.MOVE_FAILED, f"the {self.what} could not be sent", why)

    def finish(self, bound: Callable[..., Bound]) -> int:
        """Closes the sending side and waits for the receiver's success; returns the bytes sent."""
        try:
            self._near.shutdown(socket.SHUT_WR)
            said = await_exit(self._receiver, bound(*self.signs()))
        except OSError as error:
            raise Failed(Code.MOVE_FAILED, f"the connection for the {self.what} broke", str(error)) from None
        if self._receiver.returncode:
            raise Failed(Code.MOVE_FAILED, f"the destination did not receive the whole {self.what}", _last_line(said))
        sent = self.sent()
        self._near.close()
        return sent

    def close(self) -> None:
        """Closes the connection and kills the receiver. Idempotent."""
        self._near.close()
        if self._receiver.poll() is None:
            self._receiver.kill()
        self._receiver.communicate()


class RateLimited(Protocol):
    """A sender whose rate can be limited."""

    def limit_rate(self, rate: float) -> None:
        """Limits the rate from now on (bit/s)."""


class RateLimit:
    """Divides the rate of a move (bit/s; None: no limit) evenly among its active senders."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._sending: list[RateLimited] = []

    @contextmanager
    def sending(self, stream: RateLimited) -> Iterator[None]:
        """The sender has its share within the context. What is still buffered afterwards is sent at the full rate."""
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
    """Limits the rate of a TCP connection from now on (bit/s)."""
    end.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", max(1, round(rate / 8))))


def receive_tree(directory: Path) -> list[str]:
    """The receiver of `send_tree`."""
    return [*_RECEIVE, f"--directory={directory}"]


class BackgroundTask:
    """Runs `act` in a thread; `result` waits for it and re-raises its exception."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._act = act
        self._thread = threading.Thread(target=self._run, name="stream")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._act()
        except BaseException as error:  # re-raised by result()
            self._error = error

    def wait(self) -> None:
        """Returns when the act has ended, by an exception or without one."""
        self._thread.join()

    def result(self) -> None:
        """Returns when the act is done."""
        self.wait()
        if self._error is not None:
            raise self._error


def _sent(end: socket.socket) -> int:
    """Bytes sent over a TCP connection, without retransmissions."""
    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    all_, again = struct.unpack_from("=QQ", info, _TCPI_BYTES_SENT)
    return int(all_ - again)


def _last_line(text: bytes) -> str:
    """The last line with a reason; tar's final line has none."""
    lines = [line for line in text.decode(errors="replace").strip().splitlines() if "exiting now" not in line]
    return lines[-1] if lines else ""
