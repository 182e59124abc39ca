"""What every fabric driver offers: hosts at sites, and clusters' networks on them.

Invariants: every call is idempotent; a port is in exactly one state of absent, made (unplugged) and plugged; what a
driver made it finds again by name alone, so that a daemon that was killed can take it down.
"""

from __future__ import annotations

from typing import Protocol

from wherry.model.network import ClusterNetwork, Port
from wherry.model.objects import Host, HostFacts, Record
from wherry.model.spec import FabricSpec


class HoldReport(Record):
    """What a hold delivered: frames, their bytes, and for how long (seconds) it held."""

    frames: int = 0
    bytes: int = 0
    held: float = 0.0


class Hold(Protocol):
    """Frames for a port that is on its way, kept at the destination so that no peer's TCP backs off."""

    def divert(self) -> None:
        """Draws the port's MAC to this host (gratuitous ARP) and begins to keep its frames."""

    def release(self) -> HoldReport:
        """Plugs the port at this host and delivers what was kept, in order. Ends the hold."""

    def drop(self) -> None:
        """Ends the hold and forgets the frames (roll-back). Idempotent; also safe before `divert`."""


class Fabric(Protocol):
    """Hosts and networks. Paths are of this machine; a driver for real hosts adds a way to run programs there."""

    driver: str
    spec: FabricSpec

    def up(self) -> None:
        """Makes every site, host and link."""

    def down(self) -> None:
        """Removes everything that this instance's fabric ever made, ports and networks included."""

    def is_up(self) -> bool:
        """True when all hosts are there."""

    def hosts(self) -> list[Host]:
        """The hosts with their facts (gathered once)."""

    def facts(self, host: str) -> HostFacts:
        """Facts of one host."""

    def missing_files(self, host: str, paths: list[str]) -> list[str]:
        """Those of `paths` that the host does not have."""

    def reachable(self, host: str) -> bool:
        """True when the host answers. A host that is set down does not."""

    def set_down(self, host: str, down: bool) -> None:
        """Emulates the loss and return of a host (its link to the site goes down or up)."""

    def host_netns(self, host: str) -> str:
        """Path of the host's network namespace."""

    def host_address(self, host: str) -> str:
        """The host's own address in the underlay."""

    def cgroup(self, host: str) -> str:
        """Name of the host's cgroup relative to the cgroup root of each controller, e.g. `wherry-main/a1`."""

    def network_up(self, network: ClusterNetwork) -> None:
        """Makes the cluster's network on every host."""

    def network_down(self, network: ClusterNetwork) -> None:
        """Removes the cluster's network from every host."""

    def port_up(self, port: Port) -> str:
        """Makes the port's network namespace with its address and MAC, unplugged; returns the namespace's path."""

    def port_netns(self, port: Port) -> str:
        """Path of the port's namespace, made or not."""

    def port_plug(self, port: Port) -> None:
        """Plugs the port into the cluster's network at its host and announces it (gratuitous ARP)."""

    def port_unplug(self, port: Port) -> None:
        """Unplugs: from the return of this call nothing of the port reaches the network, nor the network it."""

    def port_down(self, port: Port) -> None:
        """Removes the port and its namespace."""

    def hold(self, port: Port) -> Hold:
        """A hold at the port's host, ready but not yet diverting."""
