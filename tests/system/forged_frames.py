"""Frames that somebody on the wire between hosts by SSH sends into a cluster, in packets of its VXLAN."""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_address

from realworld import RealInstance

from wherry.fabric.netns_links import VXLAN_PORT
from wherry.fabric.ssh_hosts import first_vni, identity
from wherry.model.network import ClusterNetwork, mac_of
from wherry.node.netns_socket import in_netns

FORGED = 5
_UDP_PORT = 9
_UDP, _MORE_FRAGMENTS, _FIRST = 17, 0x2000, 8


def unwanted(world: RealInstance, node: str, kind: str = "NoPorts") -> int:
    """Datagrams that have reached a node at ports where nobody listens."""
    text = world("exec", node, "--", "cat", "/proc/net/snmp").stdout
    names, values = (line.split() for line in text.splitlines() if line.startswith("Udp:"))
    return int(dict(zip(names, values, strict=True))[kind])


def forge(world: RealInstance, node: str, sender: int, to: str) -> None:
    """The network of process `sender` sends frames for a node, with its own address, to the host with address `to`."""
    payload = _vxlan(world, node)
    with in_netns(
        f"/proc/{sender}/ns/net", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ) as plain:  # fmt: skip
        plain.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 255)
        for _ in range(FORGED):
            plain.sendto(payload, (to, VXLAN_PORT))


def pretend(world: RealInstance, node: str, sender: int, to: str, source: str, ttl: int, cut: bool = False) -> None:
    """The same with another's address as the source, this TTL, and perhaps in two fragments, the first without VXLAN's
    header."""
    payload = _vxlan(world, node)
    udp = struct.pack("!4H", 4000, VXLAN_PORT, 8 + len(payload), 0) + payload
    parts = [(udp[:_FIRST], _MORE_FRAGMENTS), (udp[_FIRST:], _FIRST // 8)] if cut else [(udp, 0)]
    with in_netns(
        f"/proc/{sender}/ns/net", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    ) as raw:  # fmt: skip
        for number in range(FORGED):
            for data, offset in parts:
                raw.sendto(_packet(data, source, to, ttl, 7000 + number, offset), (to, 0))


def _vxlan(world: RealInstance, node: str) -> bytes:
    """A VXLAN's header, and a frame with a datagram for the node."""
    record = world.json("node", "show", node)["node"]
    number = ip_address(record["address"]).packed[2]
    network = ClusterNetwork(number=number, subnet=f"10.77.{number}.0/24")
    data = b"forged"
    udp = struct.pack("!4H", 4000, _UDP_PORT, 8 + len(data), 0) + data
    mac = bytes.fromhex(mac_of(network, record["index"]).replace(":", ""))
    packet = _packet(udp, f"10.77.{number}.99", record["address"], 64, 1, 0)
    vni = (first_vni(identity(world.instance)) + number) % (1 << 24)
    return struct.pack("!II", 0x08 << 24, vni << 8) + mac + bytes.fromhex("020000000099") + b"\x08\x00" + packet


def _packet(data: bytes, source: str, to: str, ttl: int, number: int, offset: int) -> bytes:
    words = 0x45, 0, 20 + len(data), number, offset, ttl, _UDP, 0, ip_address(source).packed, ip_address(to).packed
    head = struct.pack("!BBHHHBBH4s4s", *words)
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return head[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + head[12:] + data
