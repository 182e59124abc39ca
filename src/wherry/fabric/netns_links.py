"""Making links inside a network namespace, through pyroute2: bridges, pairs, VXLANs, addresses.

Invariant: every call makes what is missing and leaves what is there; a namespace made by us speaks IPv4 only, so that
nothing but what the nodes say is on the air. The messages within a move's downtime are not here but in `netlink`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from wherry.base.errors import Code, Failed
from wherry.fabric import namespaces

MTU = 1500
"""Of clusters' networks: what MPI libraries and people expect."""
UNDERLAY_MTU = 9000
"""Of hosts and sites: room for 1500 and the 50 bytes of VXLAN."""
WIRE_MTU = 9216
"""Of what joins sites: room for the underlay's frames and what an overlay puts around them."""
VXLAN_PORT = 4789
"""The port that IANA gave to VXLAN (RFC 7348)."""
NODE_INDEX = 2
"""Interface index of a node's eth0; see `pair`."""
_TAP_FRAMES = 10000
"""Frames that a TAP keeps for a virtual machine that does not run yet: all that a hold hands over."""
_TUNSETIFF, _TUNSETPERSIST = 0x400454CA, 0x400454CB
_IFF_TAP, _IFF_MULTI_QUEUE, _IFF_NO_PI = 0x2, 0x100, 0x1000

Result = TypeVar("Result")


def inside(where: str, function: Callable[[NetnsLinks], Result]) -> Result:
    """Runs `function` with the links of the namespace at path `where`. Failed names the namespace and the reason."""

    def run() -> Result:
        with IPRoute() as route:
            return function(NetnsLinks(route))

    try:
        return namespaces.inside(where, run)
    except NetlinkError as error:
        raise Failed(Code.FAILED, f"the network in {where} could not be made", str(error), "wherry doctor") from None


class NetnsLinks:
    """The links of the namespace that the calling thread is in."""

    def __init__(self, route: IPRoute) -> None:
        self._route = route

    def quiet(self) -> None:
        """`lo` up, no IPv6, and no firewall of the machine on bridged frames."""
        for name in ("all", "default"):
            _sysctl(f"ipv6/conf/{name}/disable_ipv6", "1")
        _sysctl("bridge/bridge-nf-call-iptables", "0")
        _sysctl("bridge/bridge-nf-call-arptables", "0")
        self.up("lo")

    def keep_windows(self) -> None:
        """A connection that was idle goes on as fast as it was: moves open theirs before they freeze a node."""
        _sysctl("ipv4/tcp_slow_start_after_idle", "0")

    def bridge(self, name: str, mtu: int) -> None:
        """A bridge that forwards at once: no spanning tree, no delay, no snooping of multicast."""
        if self._index(name) is None:
            self._route.link(
                "add", ifname=name, kind="bridge", mtu=mtu, br_stp_state=0, br_forward_delay=0, br_mcast_snooping=0
            )
        self.up(name)

    def pair(self, name: str, other: str, netns: int, mac: str | None = None, mtu: int = MTU) -> None:
        """Two joined links: `name` here and `other` in the namespace of descriptor `netns` with this MAC.

        A node's end has the index NODE_INDEX, which its host's end never has: a pair of links with one index would be
        told of its carrier late, up to a second, as the kernel takes it for a single link.
        """
        if self._index(name) is None:
            peer: dict[str, Any] = {"ifname": other, "net_ns_fd": netns, "mtu": mtu}
            if mac is not None:
                peer |= {"address": mac, "index": NODE_INDEX}
            self._route.link("add", ifname=name, kind="veth", mtu=mtu, peer=peer)

    def tap(self, name: str, queues: int = 1) -> None:
        """A TAP device that stays when nobody has it open, up. Its carrier comes with the program that opens it."""
        flags = _IFF_TAP | _IFF_NO_PI | (_IFF_MULTI_QUEUE if queues > 1 else 0)
        if self._index(name) is None:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
                fcntl.ioctl(device, _TUNSETPERSIST, 1)
            finally:
                os.close(device)
        self._route.link("set", index=self._index(name), txqlen=_TAP_FRAMES, mtu=MTU)
        self.up(name)

    def vxlan(self, name: str, number: int, own: str, others: list[str]) -> None:
        """A VXLAN with this VNI between underlay addresses; what has no known place goes to all others."""
        if self._index(name) is None:
            self._route.link(
                "add", ifname=name, kind="vxlan", mtu=MTU, vxlan_id=number, vxlan_local=own, vxlan_port=VXLAN_PORT,
                vxlan_learning=1,
            )  # fmt: skip
        for other in others:
            self._route.fdb("append", ifindex=self._index(name), lladdr="00:00:00:00:00:00", dst=other)

    def wireguard(self, name: str) -> None:
        """An interface of the kernel's WireGuard, not yet set up."""
        if self._index(name) is None:
            self._route.link("add", ifname=name, kind="wireguard")

    def address(self, name: str, address: str) -> None:
        """Gives the link an address with its prefix length."""
        host, _, prefix = address.partition("/")
        try:
            self._route.addr("add", index=self._index(name), address=host, prefixlen=int(prefix))
        except NetlinkError as error:
            if error.code != errno.EEXIST:
                raise

    def up(self, name: str, bridge: str | None = None) -> None:
        """Brings the link up, as a port of the bridge when one is named."""
        master = {} if bridge is None else {"master": self._index(bridge)}
        self._route.link("set", index=self._index(name), state="up", **master)

    def join(self, name: str, bridge: str | None, mtu: int) -> None:
        """Brings the link up, in this bridge or in none. The MTU first: a bridge takes the least of its ports'."""
        self._route.link("set", index=self._index(name), mtu=mtu)
        master = 0 if bridge is None else self._index(bridge)
        self._route.link("set", index=self._index(name), state="up", master=master)

    def there(self, name: str) -> bool:
        """True when there is such a link."""
        return self._index(name) is not None

    def remove(self, name: str, unless: str | None = None) -> None:
        """Removes the link, unless it is of this kind. Also when it is not there."""
        index = self._index(name)
        if index is None or unless is not None and self._kind(index) == unless:
            return
        try:
            self._route.link("del", index=index)
        except NetlinkError as error:
            if error.code != errno.ENODEV:
                raise

    def carried(self, name: str) -> tuple[int, int]:
        """Bytes of the frames that came in here, and that went out; (0, 0) when there is no such link. The kernel
        counts the headers of what it did not cut into segments once."""
        index = self._index(name)
        if index is None:
            return 0, 0
        counters = self._route.get_links(index)[0].get_attr("IFLA_STATS64")
        return int(counters["rx_bytes"]), int(counters["tx_bytes"])

    def _kind(self, index: int) -> str | None:
        info = self._route.get_links(index)[0].get_attr("IFLA_LINKINFO")
        return None if info is None else str(info.get_attr("IFLA_INFO_KIND"))

    def wait(self, name: str, timeout: float = 5.0) -> None:
        """Until this end of a pair forwards.

        The kernel tells each end of its new carrier a while after `up`; a bridge drops what comes meanwhile.
        """
        deadline = time.monotonic() + timeout
        while self._state(name) != "UP":
            if time.monotonic() > deadline:
                raise Failed(Code.TIMED_OUT, f"the link {name} did not come up", f"no carrier within {timeout:g} s")
            time.sleep(0.0002)

    def _state(self, name: str) -> str:
        return str(self._route.get_links(self._index(name))[0].get_attr("IFLA_OPERSTATE"))

    def has(self, name: str, address: str) -> bool:
        """True when the link is there, is up and has the address."""
        index = self._index(name)
        if index is None:
            return False
        up = any(link["state"] == "up" for link in self._route.get_links(index))
        return up and any(a.get_attr("IFA_ADDRESS") == address for a in self._route.get_addr(index=index))

    def clear(self) -> None:
        """Removes every link but those that the kernel made."""
        for link in self._route.get_links():
            if link["index"] != 1:
                try:
                    self._route.link("del", index=link["index"])
                except NetlinkError as error:
                    if error.code not in (errno.ENODEV, errno.EOPNOTSUPP):  # went with its peer; a tunnel's fallback
                        raise

    def _index(self, name: str) -> int | None:
        found = self._route.link_lookup(ifname=name)
        return found[0] if found else None


def _sysctl(name: str, value: str) -> None:
    path = Path("/proc/sys/net") / name
    if path.exists():  # a kernel without IPv6, or without the bridge's firewall, lacks it
        path.write_text(value)
