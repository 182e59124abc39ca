"""The interface between the fabric of hosts by SSH and one host: its place for nodes, and its ends of their network."""

from __future__ import annotations

from typing import Protocol

from pydantic import BaseModel, ConfigDict

from wherry.fabric import encrypted_wire, path_mtu
from wherry.fabric.encrypted_wire import WirePeer
from wherry.fabric.host_counters import FrameCounter, HostCounters, HostUse
from wherry.fabric.protocol import HoldReport
from wherry.model.network import ClusterNetwork, Port
from wherry.model.records import HostFacts

VXLAN_HEADERS = 50
"""Bytes of a VXLAN's packet that clusters' packets do not have."""
MTU = path_mtu.USUAL - VXLAN_HEADERS
"""Of clusters' networks in bytes, where it is not found."""
HEAD_PORT = 8472
"""UDP port at the daemon's machine, which may be a host, too: not the hosts' VXLAN_PORT, as the kernel has a VXLAN
identifier once for each port."""


def headers(encrypted: bool) -> int:
    """Bytes of a packet on the wire that clusters' packets do not have."""
    return VXLAN_HEADERS + (encrypted_wire.HEADERS if encrypted else 0)


class Losses(BaseModel):
    """The parts of a host's network that were gone: the rules that keep plain packets inside its site, which are there
    again, and its end of the encrypted wire, which `encrypt` makes again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: bool = False
    wire: bool = False


class HostHold(Protocol):
    """A hold at the host; see `wherry.fabric.protocol.Hold`."""

    def divert(self) -> None:
        """As `Hold.divert`."""

    def release(self) -> HoldReport:
        """As `Hold.release`."""

    def since_first_sent(self, timeout: float) -> float | None:
        """As `Hold.first_sent`, but how many seconds ago that was: hosts have clocks of their own."""

    def problem(self) -> str:
        """As `Hold.problem`."""

    def drop(self) -> None:
        """As `Hold.drop`."""


class HostNetwork(Protocol):
    """The network and the cgroup of one host. Every call is idempotent, and the objects that it made are found by
    name."""

    def make(self) -> None:
        """Makes the host's namespace and cgroup. Refused when its address is not the machine's, packets on the wire
        are too small, or a router is on the way to a host whose packets are plain besides encrypted ones."""

    def remove(self) -> None:
        """Removes all that the instance has at the host, with its nodes."""

    def facts(self) -> HostFacts:
        """Facts of the machine."""

    def counters(self, nodes: tuple[str, ...]) -> HostCounters:
        """As `Fabric.counters`."""

    def use(self, nodes: tuple[str, ...]) -> HostUse:
        """As `Fabric.use`."""

    def frame_counter(self) -> FrameCounter:
        """As `Fabric.frame_counter`."""

    def missing_files(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `paths` that the machine lacks."""

    def set_peers(self, peers: tuple[str, ...], near: tuple[str, ...]) -> None:
        """Replaces the addresses of the other hosts (see `HostSetup`), for networks that are made (`network_up`)
        afterwards."""

    def wire_mtu(self, to: tuple[str, ...]) -> int:
        """Bytes of the largest packet that reaches all of these addresses from here. Refused when it is too small."""

    def set_mtu(self, mtu: int) -> None:
        """The bytes of packets in networks that are made afterwards."""

    def encrypt(self) -> str:
        """Makes the host's end of the encrypted wire, and returns its public key. Refused without WireGuard."""

    def set_keys(self, peers: tuple[WirePeer, ...]) -> None:
        """Replaces the other ends of the encrypted wire."""

    def repair(self) -> Losses:
        """Makes missing rules again, and reports whether the host's end of the encrypted wire is gone."""

    def network_up(self, network: ClusterNetwork) -> None:
        """Makes the host's end of a cluster's network."""

    def network_down(self, network: ClusterNetwork) -> None:
        """Removes it."""

    def port_up(self, port: Port) -> None:
        """Makes the port, unplugged, and before that its network where that is missing."""

    def port_plug(self, port: Port) -> None:
        """As `Fabric.port_plug`."""

    def port_unplug(self, port: Port) -> None:
        """As `Fabric.port_unplug`."""

    def port_down(self, port: Port) -> None:
        """As `Fabric.port_down`."""

    def hold(self, port: Port) -> HostHold:
        """As `Fabric.hold`."""
