"""The few messages that lie within the downtime of a move, sent to the kernel without a library in between.

A `Switch` is a socket of routing netlink (RFC 3549) opened in a host's namespace and kept: attaching a port is one
message of tens of microseconds, a tenth of what the general library takes. An `Announcer` is a packet socket at a
node's own interface that says where its address is now (gratuitous ARP, RFC 5227). Both hold a socket of their
namespace: the kernel keeps the namespace for as long, so whoever removes it closes them first.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import threading

from wherry.base.errors import Code, Failed
from wherry.fabric import namespaces

_ERROR, _DONE = 2, 3
_NEWLINK, _DELLINK, _GETLINK, _SETLINK = 16, 17, 18, 19
_REQUEST, _ACK = 1, 4
_NEWNEIGH, _CREATE, _REPLACE, _PERMANENT, _NDA_DST, _NDA_LLADDR = 28, 0x400, 0x100, 0x80, 1, 2
_IFNAME, _MASTER = 3, 10
_REACHABLE, _NTF_MASTER = 0x02, 0x04
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_HEADER, _LINK, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxHiII"), struct.Struct("=HH")
IFF_UP, IFF_LOWER_UP = 0x1, 0x10000


class Switch:
    """Links of one namespace, by name. Calls from several threads take turns."""

    def __init__(self, netns: str) -> None:
        self._netns = netns
        self._lock = threading.Lock()
        self._sequence = 0
        self._socket = namespaces.inside(
            netns, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        )
        self._socket.settimeout(10.0)

    def close(self) -> None:
        """Lets go of the namespace."""
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
        self._set(name, "attach", 0, 0, _attribute(_MASTER, struct.pack("=I", found[0])))

    def teach(self, name: str, mac: str) -> None:
        """Tells the bridge that this MAC is behind the link, until a frame of that MAC tells it otherwise.

        A link without a carrier is not taught: its first frame will.
        """
        found = self.link(name)
        if found is None:
            raise Failed(Code.FAILED, f"no link {name} in {self._netns}", f"{mac} cannot be behind it", "wherry status")
        body = _NEIGHBOUR.pack(socket.AF_BRIDGE, found[0], _REACHABLE, _NTF_MASTER, 0)
        try:
            self._send(_NEWNEIGH, _REQUEST | _ACK | _CREATE | _REPLACE, body + _hardware(mac))
        except OSError as error:
            if error.errno != errno.EPERM:  # the kernel's word for a port that does not forward
                raise self._refusal("teach the bridge of", name, error) from None

    def detach(self, name: str) -> None:
        """Takes the link out of its bridge; returns when no frame is on its way through it. Also when gone."""
        self._set(name, "detach", 0, 0, _attribute(_MASTER, struct.pack("=I", 0)), absent=True)

    def set_up(self, name: str, up: bool) -> None:
        """Brings the link up or down."""
        self._set(name, "change", IFF_UP if up else 0, IFF_UP, b"")

    def delete(self, name: str) -> None:
        """Removes the link, and with it the other end of a pair. Also when gone."""
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
        """The answer's body; OSError with the kernel's errno when it refused."""
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
    """Tells the namespace for good which MAC (value) has which address (key) behind the interface.

    A node that arrives at another host would else ask for every peer anew, and a question that was lost while it was
    unplugged is asked again only after a second. OSError when the kernel refuses.
    """

    def tell() -> None:
        index = socket.if_nametoindex(interface)
        request = b""
        for number, (address, mac) in enumerate(known.items(), 1):
            body = _NEIGHBOUR.pack(socket.AF_INET, index, _PERMANENT, 0, 0)
            body += _attribute(_NDA_DST, ipaddress.IPv4Address(address).packed)
            body += _hardware(mac)
            flags = _REQUEST | _CREATE | _REPLACE | (_ACK if number == len(known) else 0)
            request += _HEADER.pack(_HEADER.size + len(body), _NEWNEIGH, flags, number, 0) + body
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as route:
            route.settimeout(10.0)
            route.send(request)
            _, answer, *_ = _HEADER.unpack_from(data := route.recv(65536))
            (code,) = struct.unpack_from("=i", data, _HEADER.size)
            if answer == _ERROR and code:
                raise OSError(-code, os.strerror(-code))

    if known:
        namespaces.inside(netns, tell)


class Announcer:
    """Says from a node's interface that its address is at its MAC, and so teaches every bridge on the way."""

    def __init__(self, netns: str, interface: str, address: str, mac: str) -> None:
        hardware, ip = bytes.fromhex(mac.replace(":", "")), ipaddress.IPv4Address(address).packed
        # Ethernet to everyone, then an ARP request in which the asked and the asking address are the same
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

        self._socket = namespaces.inside(netns, open_socket)

    def announce(self) -> None:
        """Sends it once. OSError when the interface is down."""
        self._socket.send(self._frame)

    def close(self) -> None:
        """Lets go of the namespace."""
        self._socket.close()


def _hardware(mac: str) -> bytes:
    return _attribute(_NDA_LLADDR, bytes.fromhex(mac.replace(":", "")))


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _number(attributes: bytes, wanted: int) -> int:
    """The value of a 32 bit attribute; 0 when it is not there."""
    offset = 0
    while offset + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, offset)
        if kind == wanted:
            return int(struct.unpack_from("=I", attributes, offset + _ATTRIBUTE.size)[0])
        offset += max(_ATTRIBUTE.size, length + -length % 4)
    return 0
