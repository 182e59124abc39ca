"""The netlink messages and ARP frames within the downtime of a move, sent without a library.

A `Switch` is a routing netlink socket (RFC 3549) that stays open in a host's namespace: attaching a port is one message
of tens of microseconds, a tenth of pyroute2's time. An `Announcer` is a packet socket at a node's interface that sends
gratuitous ARP (RFC 5227). An open socket keeps its namespace alive, so both are closed before the namespace is removed.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable, Set

from wherry.base.errors import Code, Failed
from wherry.fabric import named_netns

_ERROR, _DONE = 2, 3
_NEWLINK, _DELLINK, _GETLINK, _SETLINK = 16, 17, 18, 19
_REQUEST, _ACK = 1, 4
_NEWNEIGH, _CREATE, _REPLACE, _PERMANENT, _NDA_DST, _NDA_LLADDR = 28, 0x400, 0x100, 0x80, 1, 2
_IFNAME, _MASTER, _GSO_MAX_SEGS, _GSO_IPV4_MAX_SIZE, _GRO_IPV4_MAX_SIZE = 3, 10, 40, 63, 64
_NEWROUTE, _DELROUTE, _RTA_DST, _RTA_OIF, _RTA_METRICS, _RTAX_MTU = 24, 25, 1, 4, 8, 2
_TABLE_MAIN, _BY_ADMINISTRATOR, _SCOPE_LINK, _UNICAST = 254, 4, 253, 1
_REACHABLE, _NTF_MASTER = 0x02, 0x04
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_ROUTE = struct.Struct("=BBBBBBBBI")
_HEADER, _LINK, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxHiII"), struct.Struct("=HH")
IFF_UP, IFF_LOWER_UP = 0x1, 0x10000
_ANSWER = 60.0
"""Seconds for an answer of the kernel, which may have to wait for its lock on all devices."""
_FULL = 30.0
"""Seconds; an announcement is tried again for so long."""


class Switch:
    """Links of one namespace, by name. Safe to use from several threads."""

    def __init__(self, netns: str) -> None:
        self._netns = netns
        self._lock = threading.Lock()
        self._sequence = 0
        self._socket = named_netns.inside(
            netns, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        )
        self._socket.settimeout(_ANSWER)

    def close(self) -> None:
        """Closes the socket, which keeps the namespace alive."""
        self._socket.close()

    def link(self, name: str) -> tuple[int, int, int] | None:
        """Index, flags and index of the bridge (0: none) of a link; None when there is no such link."""
        try:
            answer = self._ask(_GETLINK, _REQUEST, 0, 0, _text(_IFNAME, name))
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            raise self._refusal("look up", name, error) from None
        _, _, index, flags, _ = _LINK.unpack_from(answer)
        return index, flags, _number(answer[_LINK.size :], _MASTER)

    def attach(self, name: str, bridge: str) -> None:
        """Makes the link a port of the bridge. Failed when either is missing."""
        found = self.link(bridge)
        if found is None:
            raise Failed(
                Code.FAILED, f"no bridge {bridge} in {self._netns}", f"{name} cannot be attached", "wherry status"
            )
        self._set(name, "attach", 0, 0, _u32(_MASTER, found[0]))

    def add_fdb_entry(self, name: str, mac: str) -> None:
        """Puts the MAC into the bridge's forwarding table, behind the link, until a frame from elsewhere moves it.

        A link without a carrier gets no entry; the bridge learns from its first frame.
        """
        found = self.link(name)
        if found is None:
            raise Failed(Code.FAILED, f"no link {name} in {self._netns}", f"{mac} cannot be behind it", "wherry status")
        body = _NEIGHBOUR.pack(socket.AF_BRIDGE, found[0], _REACHABLE, _NTF_MASTER, 0)
        try:
            self._send(_NEWNEIGH, _REQUEST | _ACK | _CREATE | _REPLACE, body + _hardware(mac))
        except OSError as error:
            if error.errno != errno.EPERM:  # the port does not forward yet
                raise self._refusal("add a forwarding entry for", name, error) from None

    def detach(self, name: str) -> None:
        """Takes the link, if it exists, out of its bridge; returns when no frame passes through it any more."""
        self._set(name, "detach", 0, 0, _u32(_MASTER, 0), absent=True)

    def set_up(self, name: str, up: bool) -> None:
        """Brings the link up or down."""
        self._set(name, "change", IFF_UP if up else 0, IFF_UP, b"")

    def delete(self, name: str) -> None:
        """Removes the link, if it exists, with the other end of a pair."""
        try:
            self._ask(_DELLINK, _REQUEST | _ACK, 0, 0, _text(_IFNAME, name))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise self._refusal("remove", name, error) from None

    def _set(self, name: str, verb: str, flags: int, change: int, attributes: bytes, absent: bool = False) -> None:
        try:
            self._ask(_SETLINK, _REQUEST | _ACK, flags, change, _text(_IFNAME, name) + attributes)
        except OSError as error:
            if not (absent and error.errno == errno.ENODEV):
                raise self._refusal(verb, name, error) from None

    def _refusal(self, verb: str, name: str, error: OSError) -> Failed:
        why = error.strerror or str(error)  # a timeout has no number
        return Failed(Code.FAILED, f"could not {verb} {name} in {self._netns}", why, "wherry status")

    def _ask(self, kind: int, options: int, flags: int, change: int, attributes: bytes) -> bytes:
        return self._send(kind, options, _LINK.pack(socket.AF_UNSPEC, 0, 0, flags, change) + attributes)

    def _send(self, kind: int, options: int, body: bytes) -> bytes:
        """The body of the answer. OSError with the kernel's errno when it refuses."""
        with self._lock:
            self._sequence += 1
            self._socket.send(_HEADER.pack(_HEADER.size + len(body), kind, options, self._sequence, 0) + body)
            while True:
                data = self._socket.recv(65536)
                _, answer, _, sequence, _ = _HEADER.unpack_from(data)
                if sequence != self._sequence:
                    continue  # the late answer to a request that timed out
                if answer == _ERROR:
                    (code,) = struct.unpack_from("=i", data, _HEADER.size)
                    if code:
                        raise OSError(-code, os.strerror(-code))
                return data[_HEADER.size :]


def set_neighbours(netns: str, interface: str, known: dict[str, str]) -> None:
    """Adds permanent neighbour entries, address to MAC, at the interface. OSError when the kernel refuses.

    Without them a node that arrives at another host would resolve every peer by ARP again, and ARP repeats a request
    that was lost while the port was unplugged only after a second.
    """

    def tell() -> None:
        head = _NEIGHBOUR.pack(socket.AF_INET, socket.if_nametoindex(interface), _PERMANENT, 0, 0)
        _send_all(
            (_NEWNEIGH, _CREATE | _REPLACE, head + _address(_NDA_DST, address) + _hardware(mac))
            for address, mac in known.items()
        )

    named_netns.inside(netns, tell)


def change_host_routes(netns: str, interface: str, mtu: int, add: Set[str], remove: Set[str]) -> None:
    """Adds routes with this MTU (bytes) to single addresses at the interface, and removes others, which may be gone.
    OSError when the kernel refuses."""

    def tell() -> None:
        head = _ROUTE.pack(socket.AF_INET, 32, 0, 0, _TABLE_MAIN, _BY_ADMINISTRATOR, _SCOPE_LINK, _UNICAST, 0)
        link = _u32(_RTA_OIF, socket.if_nametoindex(interface))
        metrics = _attribute(_RTA_METRICS, _u32(_RTAX_MTU, mtu))
        _send_all(((_DELROUTE, 0, head + _address(_RTA_DST, one) + link) for one in remove), ignored=errno.ESRCH)
        _send_all((_NEWROUTE, _CREATE | _REPLACE, head + _address(_RTA_DST, one) + link + metrics) for one in add)

    if add or remove:
        named_netns.inside(netns, tell)


def set_segments(name: str, size: int, count: int) -> None:
    """Lets TCP give packets of up to `size` bytes and `count` segments to a link of the calling thread's namespace
    ("BIG TCP" for IPv4). Kernels before 6.3 ignore the size. OSError when the kernel refuses."""
    head = _LINK.pack(socket.AF_UNSPEC, 0, socket.if_nametoindex(name), 0, 0)
    sizes = _u32(_GSO_IPV4_MAX_SIZE, size) + _u32(_GRO_IPV4_MAX_SIZE, size)
    _send_all([(_SETLINK, 0, head + sizes + _u32(_GSO_MAX_SEGS, count))])


def _send_all(requests: Iterable[tuple[int, int, bytes]], ignored: int = 0) -> None:
    """Sends requests (type, flags, body) at once, in the namespace of the calling thread. OSError with the first error
    of the kernel that is not `ignored`, when all were tried."""
    every, failed, last = list(requests), 0, 0
    data = b""
    for number, (kind, flags, body) in enumerate(every, 1):
        flags |= _REQUEST | (_ACK if number == len(every) else 0)  # errors are answered without it
        data += _HEADER.pack(_HEADER.size + len(body), kind, flags, number, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as route:
        route.settimeout(_ANSWER)
        if data:
            route.send(data)
        while last < len(every):
            answers, at = route.recv(65536), 0
            while at < len(answers):
                length, answer, _, last, _ = _HEADER.unpack_from(answers, at)
                (code,) = struct.unpack_from("=i", answers, at + _HEADER.size)
                if answer == _ERROR and code and -code != ignored:
                    failed = failed or -code
                at += length + -length % 4
    if failed:
        raise OSError(failed, os.strerror(failed))


class Announcer:
    """Sends gratuitous ARP for a node's address, from which every bridge on the way learns where its MAC is."""

    def __init__(self, netns: str, interface: str, address: str, mac: str) -> None:
        hardware, ip = bytes.fromhex(mac.replace(":", "")), ipaddress.IPv4Address(address).packed
        # Ethernet broadcast with an ARP request whose sender and target addresses are the same
        self._frame = (
            b"\xff" * 6 + hardware + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1) + hardware + ip + bytes(6) + ip
        )

        def open_socket() -> socket.socket:
            opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            try:
                opened.bind((interface, 0))
            except OSError:
                opened.close()  # an open socket keeps the namespace alive
                raise
            return opened

        self._socket = named_netns.inside(netns, open_socket)

    def announce(self) -> None:
        """Sends one announcement. OSError when the interface is down, or drops frames for longer than `_FULL`: the
        processor's queue is full while much is sent (net.core.netdev_max_backlog)."""
        until, pause = time.monotonic() + _FULL, 0.0005
        while True:
            try:
                self._socket.send(self._frame)
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS or time.monotonic() > until:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def close(self) -> None:
        """Closes the socket, which keeps the namespace alive."""
        self._socket.close()


def _u32(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))


def _address(kind: int, address: str) -> bytes:
    return _attribute(kind, ipaddress.IPv4Address(address).packed)


def _hardware(mac: str) -> bytes:
    return _attribute(_NDA_LLADDR, bytes.fromhex(mac.replace(":", "")))


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _number(attributes: bytes, wanted: int) -> int:
    """The value of a 32 bit attribute; 0 when it is missing."""
    offset = 0
    while offset + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, offset)
        if kind == wanted:
            return int(struct.unpack_from("=I", attributes, offset + _ATTRIBUTE.size)[0])
        offset += max(_ATTRIBUTE.size, length + -length % 4)
    return 0
