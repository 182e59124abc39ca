"""Links inside a network namespace, made through pyroute2: bridges, veth pairs, TAPs, VXLANs, addresses.

Invariants: every call makes missing objects and keeps existing ones; our namespaces speak IPv4 only, so a network
carries no frames but those of nodes. Messages within a move's downtime are sent by `netlink` instead.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from wherry.base.errors import Code, Failed
from wherry.fabric import named_netns
from wherry.fabric.netlink import set_segments

MACHINE = "/proc/self/ns/net"
"""The network of this process, which is the machine's."""
MTU = 1500
"""Of clusters' networks between sites, and of virtual machines: Ethernet's usual one."""
UNDERLAY_MTU = 9000
"""Of hosts and sites: more than 1500 and the 50 bytes of VXLAN's headers."""
_LARGE_PACKET, _SEGMENTS = 8 * 65535, 44
"""Bytes of the largest packet that TCP gives to a pair of links inside a site, which is all that the kernel allows, and
its segments: as many of MTU as make the largest packet that a VXLAN or a TAP takes whole."""
WIRE_MTU = 9216
"""Of wires between sites: the underlay's frames and an overlay's headers."""
VXLAN_PORT = 4789
"""The port that IANA gave to VXLAN (RFC 7348)."""
NODE_INDEX = 2
"""Interface index of a node's eth0; see `pair`."""
_SCOPE_LINK, _PROTO_KERNEL, _TABLE_MAIN = 253, 2, 254
_TAP_FRAMES = 10000
"""Queue length of a TAP, in frames: all that a hold delivers to a virtual machine that does not run yet."""
_TUNSETIFF, _TUNSETPERSIST = 0x400454CA, 0x400454CB
_IFF_TAP, _IFF_MULTI_QUEUE, _IFF_NO_PI = 0x2, 0x100, 0x1000

_UNKNOWN, _NTF_SELF, _STATIC = "00:00:00:00:00:00", 0x2, 0xC0
"""Of a VXLAN's forwarding entries: for all MACs without one; not the bridge's; NUD_PERMANENT and NUD_NOARP."""

Result = TypeVar("Result")


class Remote(NamedTuple):
    """The other end of a VXLAN; its UDP port, where that is not this end's."""

    address: str
    port: int | None = None

    @property
    def destination(self) -> dict[str, Any]:
        """As arguments of a forwarding entry."""
        return {"dst": self.address} | ({} if self.port is None else {"port": self.port})


def inside(where: str, function: Callable[[NetnsLinks], Result]) -> Result:
    """Runs `function` on the links of the namespace at path `where`. Failed with that path and the kernel's reason."""

    def run() -> Result:
        with IPRoute() as route:
            return function(NetnsLinks(route))

    try:
        return named_netns.inside(where, run)
    except NetlinkError as error:
        what = f"the links in the network namespace {where} could not be changed"
        raise Failed(Code.FAILED, what, str(error), "wherry doctor") from None


class NetnsLinks:
    """The links of the namespace that the calling thread is in."""

    def __init__(self, route: IPRoute) -> None:
        self._route = route

    def isolate(self) -> None:
        """Brings `lo` up, disables IPv6 but for ::1, and keeps the machine's firewall off bridged frames."""
        for name, disabled in (("all", "1"), ("default", "1"), ("lo", "0")):
            _sysctl(f"ipv6/conf/{name}/disable_ipv6", disabled)
        _sysctl("bridge/bridge-nf-call-iptables", "0")
        _sysctl("bridge/bridge-nf-call-arptables", "0")
        self.up("lo")

    def set_up_tcp(self) -> None:
        """Lets idle TCP connections keep their congestion windows, as moves warm theirs up before they freeze a node,
        and lets existing ones send smaller segments when a link gets an overlay that drops large frames."""
        _sysctl("ipv4/tcp_slow_start_after_idle", "0")
        _sysctl("ipv4/tcp_mtu_probing", "1")

    def bridge(self, name: str, mtu: int, mac: str | None = None) -> None:
        """A bridge that forwards at once: no spanning tree, no forward delay, no multicast snooping. Without `mac` it
        has the lowest one of its ports, which changes with them."""
        if self.index(name) is None:
            address = {} if mac is None else {"address": mac}
            self._route.link(
                "add", ifname=name, kind="bridge", mtu=mtu, br_stp_state=0, br_forward_delay=0, br_mcast_snooping=0,
                **address,
            )  # fmt: skip
        self.up(name)

    def pair(self, name: str, other: str, netns: int, mac: str | None = None, mtu: int = MTU) -> None:
        """A veth pair: `name` here, `other` with this MAC in the namespace of descriptor `netns`; `mtu` in bytes.

        A node's end gets the index NODE_INDEX, which its host's end never has: when both ends of a pair have the same
        index, the kernel takes them for one link and reports the carrier up to a second late.
        """
        if self.index(name) is None:
            peer: dict[str, Any] = {"ifname": other, "net_ns_fd": netns, "mtu": mtu}
            if mac is not None:
                peer |= {"address": mac, "index": NODE_INDEX}
            self._route.link("add", ifname=name, kind="veth", mtu=mtu, peer=peer)

    def large_packets(self, name: str) -> None:
        """Lets TCP send half a megabyte in one packet through this end of a pair: no wire is there that must cut it.
        Where the kernel refuses, packets stay smaller."""
        try:
            set_segments(name, _LARGE_PACKET, _SEGMENTS)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise

    def tap(self, name: str, owner: str, queues: int = 1) -> None:
        """A persistent TAP device, up, with its owner as alias. It has a carrier while a program has it open."""
        flags = _IFF_TAP | _IFF_NO_PI | (_IFF_MULTI_QUEUE if queues > 1 else 0)
        if self.index(name) is None:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
                fcntl.ioctl(device, _TUNSETPERSIST, 1)
            finally:
                os.close(device)
        self._route.link("set", index=self.index(name), txqlen=_TAP_FRAMES, mtu=MTU)
        self.up(name, owner=owner)

    def vxlan(self, name: str, number: int, own: str, others: list[str]) -> None:
        """A VXLAN with this VNI between underlay addresses; frames to unknown MACs are flooded to all `others`."""
        if self.index(name) is None:
            self._route.link(
                "add", ifname=name, kind="vxlan", mtu=MTU, vxlan_id=number, vxlan_local=own, vxlan_port=VXLAN_PORT,
                vxlan_learning=1,
            )  # fmt: skip
        self.flood(name, [Remote(other) for other in others])

    def vxlan_for(self, netns: int, name: str, vni: int, own: str, port: int, mtu: int, learns: bool, ttl: int) -> None:
        """A VXLAN in the namespace of descriptor `netns`, whose packets are sent from address `own` of this one, and
        received there at UDP port `port`; `ttl` 0 is the namespace's usual one."""
        self._route.link(
            "add", ifname=name, kind="vxlan", mtu=mtu, net_ns_fd=netns, vxlan_id=vni, vxlan_local=own, vxlan_port=port,
            vxlan_learning=int(learns), vxlan_ttl=ttl,
        )  # fmt: skip

    def flood(self, name: str, others: Sequence[Remote]) -> None:
        """Sends frames to unknown MACs to each of `others`."""
        for other in others:
            self._route.fdb("append", ifindex=self.index(name), lladdr=_UNKNOWN, **other.destination)

    def flood_only(self, name: str, others: Sequence[Remote]) -> None:
        """Sends frames to unknown MACs to each of `others`, and to no other end of an earlier call."""
        self.flood(name, others)
        index = self.index(name)
        for entry in list(self._route.fdb("dump", lladdr=_UNKNOWN)):
            end = Remote(entry.get_attr("NDA_DST"), entry.get_attr("NDA_PORT"))
            if entry["ifindex"] != index or not end.address or end in others:
                continue
            try:
                self._route.fdb("del", ifindex=index, lladdr=_UNKNOWN, **end.destination)
            except NetlinkError as error:
                if error.code != errno.ENOENT:
                    raise

    def place(self, name: str, mac: str, at: Remote) -> None:
        """Sends frames for a MAC to this end alone, whatever comes from elsewhere."""
        self._route.fdb(
            "replace", ifindex=self.index(name), lladdr=mac, flags=_NTF_SELF, state=_STATIC, **at.destination
        )

    def router_to(self, address: str) -> str | None:
        """The router by which packets to an address go; None when it is on one of this namespace's own networks, or
        cannot be reached."""
        try:
            ways = list(self._route.route("get", dst=address))
        except NetlinkError as error:
            if error.code not in (errno.ENETUNREACH, errno.EHOSTUNREACH):
                raise
            return None
        routers = (way.get_attr("RTA_GATEWAY") or way.get_attr("RTA_VIA") for way in ways)
        return next((str(router) for router in routers if router), None)

    def mtu_of(self, address: str) -> int | None:
        """The MTU of the link that has the address; None when none has it."""
        for found in self._route.get_addr(family=socket.AF_INET):
            if found.get_attr("IFA_LOCAL") == address:
                return int(self._route.get_links(found["index"])[0].get_attr("IFLA_MTU"))
        return None

    def route_mtu(self, name: str, address: str, mtu: int) -> None:
        """Sets the MTU of the route to the network of this address, which is the link's: `10.77.1.3/24`."""
        host, _, prefix = address.partition("/")
        network = str(ipaddress.ip_interface(address).network)
        self._route.route(
            "replace", dst=network, oif=self.index(name), prefsrc=host, scope=_SCOPE_LINK, proto=_PROTO_KERNEL,
            metrics={"mtu": mtu},
        )  # fmt: skip

    def host_routes(self) -> frozenset[str]:
        """The single addresses that have a route of their own."""
        found = self._route.get_routes(family=socket.AF_INET, table=_TABLE_MAIN)
        return frozenset(str(route.get_attr("RTA_DST")) for route in found if route["dst_len"] == 32)

    def wireguard(self, name: str) -> None:
        """An interface of the kernel's WireGuard, not configured."""
        if self.index(name) is None:
            self._route.link("add", ifname=name, kind="wireguard")

    def wireguard_for(self, netns: int, name: str) -> None:
        """The same in the namespace of descriptor `netns`; its packets are of this one."""
        self._route.link("add", ifname=name, kind="wireguard", net_ns_fd=netns)

    def give(self, name: str, netns: int) -> None:
        """Moves a link to the namespace of descriptor `netns`."""
        self._route.link("set", index=self.index(name), net_ns_fd=netns)

    def route_only(self, name: str, addresses: Sequence[str]) -> None:
        """Sends packets for these single addresses through the link, and for no other one of an earlier call."""
        index = self.index(name)
        for address in addresses:
            self._route.route("replace", dst=f"{address}/32", oif=index, scope=_SCOPE_LINK)
        for found in self._route.get_routes(family=socket.AF_INET, table=_TABLE_MAIN, oif=index):
            address = str(found.get_attr("RTA_DST"))
            if found["dst_len"] == 32 and address not in addresses:
                self._route.route("del", dst=f"{address}/32", oif=index, scope=_SCOPE_LINK)

    def address(self, name: str, address: str) -> None:
        """Adds an address, with its prefix length, to the link."""
        host, _, prefix = address.partition("/")
        try:
            self._route.addr("add", index=self.index(name), address=host, prefixlen=int(prefix))
        except NetlinkError as error:
            if error.code != errno.EEXIST:
                raise

    def up(self, name: str, bridge: str | None = None, owner: str | None = None) -> None:
        """Brings the link up, as a port of the bridge when one is named; `owner` becomes its alias."""
        more: dict[str, Any] = {} if bridge is None else {"master": self._bridge_index(bridge, name)}
        if owner is not None:
            more["ifalias"] = owner
        self._route.link("set", index=self.index(name), state="up", **more)

    def join_isolated(self, name: str, bridge: str) -> None:
        """Brings the link up as a port of the bridge that passes no frame to another port of this kind, nor takes one
        from it: not for a moment, if the link is down."""
        index = self.index(name)
        self._route.link("set", index=index, master=self._bridge_index(bridge, name))
        self._route.brport("set", index=index, isolated=1)
        self._route.link("set", index=index, state="up")

    def down(self, name: str) -> None:
        """Takes the link down."""
        self._route.link("set", index=self.index(name), state="down")

    def ports(self, prefix: str, bridge: str) -> list[tuple[int, str, bool, int]]:
        """The bridge's ports named `prefix` and a number: the number, the alias, whether it is a TAP, and the index."""
        master, found = self.index(bridge), []
        for link in self._route.get_links() if master is not None else ():
            name, number = link.get_attr("IFLA_IFNAME"), link.get_attr("IFLA_IFNAME")[len(prefix) :]
            if name.startswith(prefix) and number.isdecimal() and link.get_attr("IFLA_MASTER") == master:
                tap = self._kind(link["index"]) == "tun"
                found.append((int(number), str(link.get_attr("IFLA_IFALIAS")), tap, int(link["index"])))
        return found

    def attach(self, name: str, bridge: str | None, mtu: int) -> None:
        """Brings the link up, in this bridge or in none. Sets the MTU first: a bridge takes its ports' smallest."""
        master = 0 if bridge is None else self._bridge_index(bridge, name)
        self._route.link("set", index=self.index(name), mtu=mtu)
        self._route.link("set", index=self.index(name), state="up", master=master)

    def indices(self) -> dict[str, int]:
        """The kernel's index of every link."""
        return {str(link.get_attr("IFLA_IFNAME")): int(link["index"]) for link in self._route.get_links()}

    def names(self, prefix: str) -> list[str]:
        """The links that are named `prefix` and a number."""
        names = [str(link.get_attr("IFLA_IFNAME")) for link in self._route.get_links()]
        return [name for name in names if name.startswith(prefix) and name[len(prefix) :].isdecimal()]

    def exists(self, name: str) -> bool:
        """True when a link has this name."""
        return self.index(name) is not None

    def remove(self, name: str, unless: str | None = None) -> None:
        """Removes the link if it exists, unless it is of the kind `unless`."""
        index = self.index(name)
        if index is None or unless is not None and self._kind(index) == unless:
            return
        try:
            self._route.link("del", index=index)
        except NetlinkError as error:
            if error.code != errno.ENODEV:
                raise

    def byte_counters(self, name: str) -> tuple[int, int]:
        """Bytes received and sent; (0, 0) for a missing link. An unsegmented (GSO) frame's headers count once."""
        index = self.index(name)
        if index is None:
            return 0, 0
        counters = self._route.get_links(index)[0].get_attr("IFLA_STATS64")
        return int(counters["rx_bytes"]), int(counters["tx_bytes"])

    def _kind(self, index: int) -> str | None:
        info = self._route.get_links(index)[0].get_attr("IFLA_LINKINFO")
        return None if info is None else str(info.get_attr("IFLA_INFO_KIND"))

    def wait(self, name: str, timeout: float = 30.0) -> None:
        """Waits until this end of a pair is operational.

        The kernel reports the carrier to each end a while after `up`; until then a bridge drops its frames.
        """
        deadline = time.monotonic() + timeout
        while self._state(name) != "UP":
            if time.monotonic() > deadline:
                raise Failed(Code.TIMED_OUT, f"the link {name} did not come up", f"no carrier within {timeout:g} s")
            time.sleep(0.0002)

    def _state(self, name: str) -> str:
        return str(self._route.get_links(self.index(name))[0].get_attr("IFLA_OPERSTATE"))

    def has_address(self, name: str, address: str) -> bool:
        """True when the link exists, is up and has the address."""
        index = self.index(name)
        if index is None:
            return False
        up = any(link["state"] == "up" for link in self._route.get_links(index))
        return up and any(a.get_attr("IFA_ADDRESS") == address for a in self._route.get_addr(index=index))

    def remove_all(self) -> None:
        """Removes every link except the kernel's own of each namespace."""
        for link in self._route.get_links():
            if link["index"] != 1:
                try:
                    self._route.link("del", index=link["index"])
                except NetlinkError as error:
                    if error.code not in (errno.ENODEV, errno.EOPNOTSUPP):  # gone with its peer; a fallback tunnel
                        raise

    def _bridge_index(self, bridge: str, port: str) -> int:
        """Failed when there is no such bridge: pyroute2 omits a missing index, and the kernel would join nothing."""
        index = self.index(bridge)
        if index is None:
            what, why = f"{port} was not joined to the bridge {bridge}", f"there is no link {bridge}"
            raise Failed(Code.FAILED, what, why, "ip link")
        return index

    def index(self, name: str) -> int | None:
        """The kernel's index of the link; None when there is none of the name."""
        found = self._route.link_lookup(ifname=name)
        return found[0] if found else None


def _sysctl(name: str, value: str) -> None:
    path = Path("/proc/sys/net") / name
    if path.exists():  # missing in a kernel without IPv6 or br_netfilter
        path.write_text(value)
