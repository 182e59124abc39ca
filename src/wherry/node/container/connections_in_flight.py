"""Whether a node's TCP has a connection that no program of it has yet: in a handshake, or waiting to be accepted.

CRIU can dump neither. The node stands meanwhile, so sock_diag(7) is asked without a library: the files in /proc/net
take 5 ms each, as the kernel goes through all connections of the machine for them.
"""

from __future__ import annotations

import os
import socket
import struct

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


def has_connections_in_flight(netns: str) -> bool:
    """True when a connection is in its handshake or in an accept queue. MOVE_FAILED when the kernel does not tell."""
    try:
        return in_netns(netns, lambda: any(_in_flight(family) for family in (socket.AF_INET, socket.AF_INET6)))
    except OSError as error:
        what = "the node's TCP connections could not be checked"
        raise Failed(Code.MOVE_FAILED, what, error.strerror or str(error), "modprobe tcp_diag") from None


def _in_flight(family: int) -> bool:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as diag:
        states = 1 << _SYN_RECEIVED | 1 << _LISTEN | 1 << _NEW_SYN_RECEIVED
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, states)
        diag.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _DUMP, 1, 0) + body)
        found = False
        while True:
            data, at = diag.recv(1 << 16), 0
            while at < len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", data, at + _HEADER.size)
                    raise OSError(-code, os.strerror(-code))
                _, state, waiting = _ANSWER.unpack_from(data, at + _HEADER.size)
                found = found or state != _LISTEN or waiting > 0
                at += length + 3 & ~3
