"""Whether a node has a connection that no program of it has yet: of TCP, in its handshake or waiting to be accepted; of
a Unix socket, waiting to be accepted with something written to it, or closed by its maker. And which Unix sockets have
something to read (but for messages without a byte), as there may be descriptors in it (`messages`).

CRIU can dump no connection of these kinds. The node is frozen meanwhile, so sock_diag(7) is asked without a library:
the files in /proc/net take 5 ms each, as the kernel goes through all connections of the machine for them.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass

from wherry.base.errors import Code, Failed
from wherry.node.netns_socket import in_netns

_NETLINK_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_ERROR, _DONE = 2, 3
_SYN_RECEIVED, _LISTEN, _NEW_SYN_RECEIVED = 3, 10, 12
"""States of a connection (net/tcp_states.h)."""
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48x")
_ANSWER = struct.Struct("=BBxx52xI")
"""Of struct inet_diag_msg: family, state, and bytes to read, which for a listening socket are connections."""
_UNIX_REQUEST = struct.Struct("=BBxxIII8x")
"""struct unix_diag_req: family, protocol, states, inode, what to show."""
_UNIX_ANSWER = struct.Struct("=BBBxI8x")
"""struct unix_diag_msg: family, type, state, inode. Attributes follow."""
_SHOW_ICONS, _SHOW_LENGTHS = 8, 16
_ICONS, _LENGTHS = 3, 4
"""Attributes (linux/unix_diag.h): inodes of sockets that wait to be accepted, 0 for a closed one; bytes to read, and
written and not yet read."""
_ANY_STATE = 0xFFFFFFFF


@dataclass(frozen=True)
class InFlight:
    """`connections`: one is in its handshake or in an accept queue, but for one of a Unix socket that can be dumped.
    `unread`: the inodes of the Unix sockets with something to read."""

    connections: bool
    unread: frozenset[int]


def has_connections_in_flight(netns: str) -> bool:
    """As `in_flight` has it."""
    return in_flight(netns).connections


def in_flight(netns: str) -> InFlight:
    """The connections and unread sockets of a network namespace. MOVE_FAILED when the kernel refuses to list it."""
    try:
        return in_netns(netns, _look)
    except OSError as error:
        what = "the node's connections could not be checked"
        raise Failed(Code.MOVE_FAILED, what, error.strerror or str(error), "modprobe -a tcp_diag unix_diag") from None


def _look() -> InFlight:
    are_any, unread = _unix_in_flight()
    return InFlight(are_any or _in_flight(socket.AF_INET) or _in_flight(socket.AF_INET6), unread)


def _in_flight(family: int) -> bool:
    states = 1 << _SYN_RECEIVED | 1 << _LISTEN | 1 << _NEW_SYN_RECEIVED
    found = False
    for message in _dump(_REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, states)):
        _, state, waiting = _ANSWER.unpack_from(message)
        found = found or state != _LISTEN or waiting > 0
    return found


def _unix_in_flight() -> tuple[bool, frozenset[int]]:
    waiting, to_read, has_written = set[int](), set[int](), set[int]()
    for message in _dump(_UNIX_REQUEST.pack(socket.AF_UNIX, 0, _ANY_STATE, 0, _SHOW_ICONS | _SHOW_LENGTHS)):
        *_, state, inode = _UNIX_ANSWER.unpack_from(message)
        waiting.update(one for (one,) in struct.iter_unpack("=I", _attribute(message, _ICONS)))
        if state != _LISTEN and (lengths := _attribute(message, _LENGTHS)):
            received, written = struct.unpack("=II", lengths)
            to_read.update([inode] if received else ())
            has_written.update([inode] if written else ())
    return 0 in waiting or not waiting.isdisjoint(has_written), frozenset(to_read)


def _attribute(message: bytes, wanted: int) -> bytes:
    """The value of an attribute behind a struct unix_diag_msg; empty without it."""
    at = _UNIX_ANSWER.size
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == wanted:
            return message[at + 4 : at + length]
        at += max(length, 4) + 3 & ~3
    return b""


def _dump(request: bytes) -> list[bytes]:
    """The answer of sock_diag(7), without the headers. OSError when it refuses."""
    found = list[bytes]()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as diag:
        diag.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            data, at = diag.recv(1 << 16), 0
            while at < len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", data, at + _HEADER.size)
                    raise OSError(-code, os.strerror(-code))
                found.append(data[at + _HEADER.size : at + length])
                at += length + 3 & ~3
