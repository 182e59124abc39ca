"""Keeps the processes of a node from exchanging packets over the loopback while it is dumped.

A frozen node's TCP still acknowledges, and sends again. CRIU dumps one connection after the other, so a segment that
its receiver got after its own dump, and that its sender no longer has at its dump, would be lost for ever. The port
of the node is unplugged by then; the loopback drops all (qdisc `blackhole`). The node is frozen meanwhile, so the
kernel is asked without a library, over a socket that was opened before.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from wherry.base.errors import Code, Failed
from wherry.node.netns_socket import in_netns

_LOOPBACK = 1
"""Its index in every network namespace."""
_NEW, _DELETE = 36, 37
"""RTM_NEWQDISC and RTM_DELQDISC (linux/rtnetlink.h)."""
_REQUEST, _ACKNOWLEDGE, _REPLACE, _CREATE = 0x1, 0x4, 0x100, 0x400
"""Flags of a message (linux/netlink.h)."""
_ROOT = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_QDISC = struct.Struct("=BxxxiIII")
"""struct tcmsg: family, interface, handle, parent, info."""
_KIND = struct.pack("=HH10sxx", 14, 1, b"blackhole")
"""TCA_KIND."""
_ERROR = struct.Struct("=i")


class Loopback:
    """That of the network namespace at a path."""

    def __init__(self, netns: str) -> None:
        self._netns = netns
        self._kernel: socket.socket | None = None

    def open(self) -> None:
        """MOVE_FAILED when there is no such namespace."""
        if self._kernel is None:
            try:
                self._kernel = in_netns(self._netns, _kernel)
            except OSError as error:
                raise _failed(error) from None

    def stop(self) -> None:
        """Drops all packets from now on. MOVE_FAILED when the kernel refuses."""
        self._ask(_NEW, _REPLACE | _CREATE, _KIND)

    def start(self) -> None:
        """Lets packets pass. Idempotent, also when the namespace is gone."""
        if os.path.exists(self._netns):
            self._ask(_DELETE, 0, b"", errno.ENOENT, errno.EINVAL)

    def close(self) -> None:
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def _ask(self, kind: int, flags: int, attribute: bytes, *accepted: int) -> None:
        self.open()
        kernel = self._kernel
        assert kernel is not None
        body = _QDISC.pack(0, _LOOPBACK, 0, _ROOT, 0) + attribute
        try:
            header = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _ACKNOWLEDGE | flags, 0, 0)
            kernel.send(header + body)
            (code,) = _ERROR.unpack_from(kernel.recv(1 << 12), _HEADER.size)
            if code and -code not in accepted:
                raise OSError(-code, os.strerror(-code))
        except OSError as error:
            raise _failed(error) from None


def _kernel() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)


def _failed(error: OSError) -> Failed:
    what = "the node's loopback could not be stopped or started"
    return Failed(Code.MOVE_FAILED, what, error.strerror or str(error), "use a kernel with CONFIG_NET_SCHED")
