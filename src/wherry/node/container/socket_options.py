"""Gives the sockets of a restored node the options that CRIU does not carry.

The dump notes each option that a program has changed (native/preload/criu_options.c): sockets without such options are
free of cost at the destination. Each option that is set is read again before the copy runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.node.container.fd_identity import inner_pid
from wherry.node.container.host import SocketOption
from wherry.node.container.messages import everything_at
from wherry.node.container.timers import borrowed

_MAX_VALUE = 64
"""Bytes of a value."""
_libc = ctypes.CDLL(None, use_errno=True)


def read_all(pids: Sequence[int], noted: Path) -> tuple[SocketOption, ...]:
    """The options of a frozen node's sockets that its dump noted in a file, in the order in which to set them."""
    try:
        lines = [line.split() for line in noted.read_text().splitlines()]
    except FileNotFoundError:
        return ()
    holders, in_messages = _holders(pids) if lines else {}, dict[str, tuple[int, int, tuple[int, ...]]]()
    if any(inode not in holders for inode, *_ in lines):
        in_messages = _in_messages(pids, holders)
    found = []
    for inode, level, option, *value in lines:
        if inode in holders:
            found.append(SocketOption(*holders[inode], int(level), int(option), "".join(value)))
        elif inode in in_messages:  # else it is one of CRIU's own
            process, number, place = in_messages[inode]
            found.append(SocketOption(process, number, int(level), int(option), "".join(value), place))
    return tuple(found)


def carry_to(pids: Sequence[int], options: Sequence[SocketOption]) -> None:
    """Sets the options of the restored sockets. MOVE_FAILED when one cannot be set."""
    copies = {inner_pid(pid): pid for pid in pids} if options else {}
    for one in options:
        try:
            if one.place:
                _give_in_message(copies[one.process], one)
                continue
            with borrowed(copies[one.process], one.number) as socket:
                _give(socket, one)
        except (OSError, KeyError) as error:
            what = f"an option of a socket of process {one.process} could not be carried over"
            why = f"descriptor {one.number}, level {one.level}, option {one.option}: {error}"
            raise Failed(Code.MOVE_FAILED, what, why, "repeat the move when the program has ended") from None


def _give_in_message(pid: int, one: SocketOption) -> None:
    for place, file in everything_at(pid, one.number):
        if place == one.place:
            _give(file, one)
            return
    raise OSError(0, "the socket is in no message there")


def _give(socket: int, one: SocketOption) -> None:
    value = bytes.fromhex(one.value)
    if _value(socket, one) == value:
        return
    if _libc.setsockopt(socket, one.level, one.option, value, len(value)):
        raise _error()
    if (now := _value(socket, one)) != value:
        raise OSError(0, f"it is {now.hex()}, not {one.value}")


def _value(socket: int, one: SocketOption) -> bytes:
    room = ctypes.create_string_buffer(_MAX_VALUE)
    size = ctypes.c_uint32(max(len(one.value) // 2, 1))
    if _libc.getsockopt(socket, one.level, one.option, room, ctypes.byref(size)):
        raise _error()
    return room.raw[: size.value]


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _in_messages(
    pids: Sequence[int], holders: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    """The inode of each object that a message has -> a process, its descriptor of the Unix socket, and the place."""
    originals, found = {inner_pid(pid): pid for pid in pids}, {}
    for process, number in holders.values():
        with contextlib.suppress(OSError):  # it was killed
            for place, file in everything_at(originals[process], number):
                found[str(os.fstat(file).st_ino)] = process, number, place
    return found


def _holders(pids: Sequence[int]) -> dict[str, tuple[int, int]]:
    """A process, by its PID inside the node, and a descriptor of it, for each socket's inode."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended
            inner, directory = inner_pid(pid), f"/proc/{pid}/fd"
            for name in os.listdir(directory):
                target = os.readlink(f"{directory}/{name}")
                if target.startswith("socket:["):
                    found[target[8:-1]] = inner, int(name)
    return found
