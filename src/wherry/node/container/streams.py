"""The data streams of a move, one connection each: CRIU's images by tar, memory pages to its page server.

The receiving program is started at the destination before the freeze. `Receiver.await_all` returns only when it got
everything, so a broken connection fails the move before the restore.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.node.container.deaths import how_it_ended
from wherry.node.container.progress_bounds import (
    ProgressProbe,
    StallTimeout,
    await_exit,
    reap,
    round_trip,
    traffic_of,
    work_of,
)
from wherry.node.container.rate_limit import set_rate_limit
from wherry.node.container.tunnel import wire_of

_TCPI_BYTES_SENT = 200
"""Offset of tcpi_bytes_sent and tcpi_bytes_retrans (u64) in struct tcp_info, linux/tcp.h."""
_SEND = ("tar", "--create", "--file=-", "--numeric-owner")
_TOLD = ("--null", "--files-from=-")
"""It reads from its standard input what to send, of the directory that was named before."""
_RECEIVE = ("tar", "--extract", "--file=-", "--read-full-records", "--numeric-owner")


_RECEIVERS = (b"\0page-server\0", b"\0--extract\0", b"/wherry-tree\0receive\0")
"""Arguments by which the receiving programs are found."""


class Sender:
    """The source's end of one connection."""

    def __init__(self, what: str, end: socket.socket) -> None:
        self.what = what
        self._end = end
        self._before = _sent(end)
        self._tree: subprocess.Popen[bytes] | None = None

    def fileno(self) -> int:
        """The descriptor, for a program that inherits it."""
        return self._end.fileno()

    def limit_rate(self, rate: float) -> None:
        """Limits the rate from now on (bit/s), also while another program sends over the connection."""
        set_rate_limit(self._end, rate)

    def round_trip(self) -> float:
        """Round-trip time in seconds."""
        return round_trip(self._end)

    def traffic(self) -> ProgressProbe:
        """A probe of the connection."""
        return traffic_of(self._end)

    def sent(self) -> int:
        """Bytes sent so far."""
        return _sent(self._end) - self._before

    def cut(self) -> None:
        """Shuts the connection down, so that whatever sends fails."""
        with contextlib.suppress(OSError):  # it is closed already
            self._end.shutdown(socket.SHUT_RDWR)

    def uncork(self) -> None:
        """Clears TCP_CORK: the kernel sends a partial segment at once."""
        wire_of(self._end).setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

    def start_tree(self, directory: Path) -> None:
        """Starts the program that `send_tree` has send this directory, so that it need not be started then."""
        self._tree = subprocess.Popen(
            [*_SEND, f"--directory={directory}", *_TOLD],
            stdin=subprocess.PIPE,
            stdout=self._end.fileno(),
            stderr=subprocess.PIPE,
        )

    def send_tree(self, make_timeout: Callable[..., StallTimeout]) -> None:
        """Sends the directory, and nothing more. `make_timeout` makes the timeout of the step from its probes."""
        sender = self._tree
        assert sender is not None
        try:
            said = await_exit(sender, make_timeout(self.traffic(), work_of(lambda: [sender.pid])), b".\0")
        except BaseException:
            reap(sender)
            raise
        if sender.returncode:
            why = "its connection was cut" if sender.returncode == -signal.SIGPIPE else _last_line(said)
            raise Failed(Code.MOVE_FAILED, f"the {self.what} could not be sent", why)
        self.end()

    def problem(self) -> str:
        """How the program was killed; empty when it was not."""
        how = how_it_ended(self._tree) if self._tree else ""
        return f"the program that sends the {self.what} {how}" if how else ""

    def end(self) -> None:
        """Tells the receiver that this was all."""
        try:
            self._end.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise Failed(Code.MOVE_FAILED, f"the connection for the {self.what} broke", str(error)) from None

    def close(self) -> None:
        """Closes the connection, and kills the program. Idempotent."""
        if self._tree:
            reap(self._tree)
        self._end.close()


class SenderGroup:
    """The source's ends of several connections that carry one stream. One of them at least."""

    def __init__(self, what: str, ends: Sequence[socket.socket]) -> None:
        self._senders = [Sender(what, end) for end in ends]

    def filenos(self) -> list[int]:
        """The descriptors, for a program that inherits them."""
        return [sender.fileno() for sender in self._senders]

    def limit_rate(self, rate: float) -> None:
        """Limits the rate of all together from now on (bit/s)."""
        for sender in self._senders:
            sender.limit_rate(rate / len(self._senders))

    def limit_first(self, rate: float) -> None:
        """Limits the rate of the first one, while the others send nothing (bit/s)."""
        self._senders[0].limit_rate(rate)

    def round_trip(self) -> float:
        """The longest round-trip time in seconds."""
        return max(sender.round_trip() for sender in self._senders)

    def traffic(self) -> ProgressProbe:
        """A probe of any connection."""
        probes = [sender.traffic() for sender in self._senders]
        return lambda: any([probe() for probe in probes])  # all are called, as each remembers its last value

    def sent(self) -> int:
        """Bytes sent so far."""
        return sum(sender.sent() for sender in self._senders)

    def cut(self) -> None:
        """Shuts the connections down."""
        for sender in self._senders:
            sender.cut()

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        for sender in self._senders:
            sender.close()


class Receiver:
    """The program that reads the destination's end of one connection. It gets the end by `{fd}` in its arguments, or
    reads it as standard input. It has a process group of its own: CRIU forks while it starts, and such a child would
    outlive it and keep its standard error open."""

    def __init__(self, what: str, end: socket.socket, argv: Sequence[str], stdin: bool) -> None:
        self._what = what
        with end:
            self.round_trip = round_trip(end)
            """Round-trip time in seconds when the program was started."""
            self._process = subprocess.Popen(
                [word.replace("{fd}", str(end.fileno())) for word in argv],
                stdin=end.fileno() if stdin else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=() if stdin else (end.fileno(),),
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """The program's PID."""
        return self._process.pid

    def await_all(self, make_timeout: Callable[..., StallTimeout]) -> None:
        """Returns when the program has received everything. After a failure `close` ends it."""
        said = await_exit(self._process, make_timeout(work_of(lambda: [self.pid])))
        if self._process.returncode:
            what = f"the destination did not receive the whole {self._what}"
            raise Failed(Code.MOVE_FAILED, what, _last_line(said))

    def problem(self) -> str:
        """How the program was killed; empty when it was not."""
        how = how_it_ended(self._process)
        return f"the program that receives the {self._what} {how}" if how else ""

    def close(self) -> None:
        """Kills the program and all that it forked. Idempotent."""
        if self._process.returncode is None:  # not waited for, so the group's number is still its own
            os.killpg(self.pid, signal.SIGKILL)
        reap(self._process)


def receive_tree(directory: Path) -> list[str]:
    """The receiver of `send_tree`."""
    return [*_RECEIVE, f"--directory={directory}"]


def _sent(end: socket.socket) -> int:
    """Bytes sent over a TCP connection, without retransmissions."""
    info = wire_of(end).getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    all_, again = struct.unpack_from("=QQ", info, _TCPI_BYTES_SENT)
    return int(all_ - again)


def _last_line(text: bytes) -> str:
    """The last line with a reason; tar's final line has none."""
    lines = [line for line in text.decode(errors="replace").strip().splitlines() if "exiting now" not in line]
    return lines[-1] if lines else ""


def end_receivers(directory: Path) -> None:
    """Kills receivers that a killed daemon left, so that CRIU fails now, and not when everything has been sent."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            if f"{directory}/".encode() in words and any(word in words for word in _RECEIVERS):
                os.kill(int(entry.name), signal.SIGKILL)
