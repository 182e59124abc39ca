"""What every fabric driver offers: hosts at sites, and clusters' networks on them.

Invariants: every call is idempotent; a port is in exactly one state of absent, made (unplugged) and plugged; what a
driver made it finds again by name alone, so that a daemon that was killed can take it down.
"""

from __future__ import annotations

from typing import Protocol

from wherry.model.network import ClusterNetwork, Port
from wherry.model.objects import Host, HostFacts, Record
from wherry.model.spec.fabric import FabricSpec, LinkSpec


class HoldReport(Record):
    """What a hold delivered: frames, their bytes, and for how long (seconds) it held; None when it could not hold."""

    frames: int = 0
    bytes: int = 0
    held: float | None = None


class Traffic(Record):
    """What went into a link in one direction: frames, their bytes, how many were lost by the rule of loss, dropped
    because the queue was full, and the bytes on their way."""

    frames: int = 0
    bytes: int = 0
    lost: int = 0
    dropped: int = 0
    waiting: int = 0


class LinkState(Record):
    """A link: how it is emulated, what it carried (None: not counted), and the CPU seconds of that.

    `emulation` is `netem`, `wherry-link`, `none` (not at all) or `dead` (about to be repaired); `overlay` is `up` when
    both gateways are there, else `dead`; None when there is none.
    """

    link: LinkSpec
    emulation: str
    overlay: str | None = None
    there: Traffic | None = None
    back: Traffic | None = None
    cpu: float | None = None


class LinkMeasure(Record):
    """What was measured between the first hosts of two sites: the latency there and back (seconds, one way), and what
    TCP filled the wire with in each direction (bit/s, headers counted). None: not measured, or nothing came through."""

    latency: float | None = None
    latency_back: float | None = None
    there: float | None = None
    back: float | None = None


class Repair(Record):
    """What was done about a link that had died: it is started anew, or that failed, with the reason."""

    text: str
    failed: bool = False


class Hold(Protocol):
    """Frames for a port that is on its way, kept at the destination so that no peer's TCP backs off."""

    def divert(self) -> None:
        """Draws the port's MAC to this host (gratuitous ARP) and begins to keep its frames."""

    def release(self) -> HoldReport:
        """Plugs the port at this host and delivers what was kept, in order. Ends the hold."""

    def first_sent(self, timeout: float) -> float | None:
        """After a release: when (time.monotonic) the node first sent data of a program's through the port; None when
        that is not known within so many seconds."""

    def give_back(self, source: Port) -> HoldReport:
        """In a roll-back: plugs the source's port and delivers there what was kept and, until the drop, what still
        comes. Draws nothing to this host any more; the source's port is still to be announced (`port_plug`)."""

    def drop(self) -> None:
        """Ends the hold and forgets the frames that it still has. Idempotent; also safe before `divert`."""


class Fabric(Protocol):
    """Hosts and networks. Paths are of this machine; a driver for real hosts adds a way to run programs there."""

    driver: str
    spec: FabricSpec
    uncounted: str
    """Why neither what nodes send nor what others use of hosts can be counted from here; empty when it can."""

    def up(self) -> None:
        """Makes every site, host and link."""

    def down(self) -> None:
        """Removes everything that this instance's fabric ever made, ports and networks included."""

    def is_up(self) -> bool:
        """True when all hosts are there."""

    def hosts(self) -> list[Host]:
        """The hosts as declared, with the facts that are known of them. Asks none of them anything."""

    def facts(self, host: str) -> HostFacts:
        """Facts of one host."""

    def missing_files(self, host: str, paths: list[str]) -> list[str]:
        """Those of `paths` that the host does not have."""

    def reachable(self, host: str) -> bool:
        """True when the host answers. A host that is set down does not."""

    def set_lost(self, host: str, lost: bool) -> None:
        """Declares a host lost, from which on it is asked nothing and does not count, or takes that back. Refused for
        hosts that cannot be."""

    def set_down(self, host: str, down: bool) -> None:
        """Emulates the loss and return of a host (its link to the site goes down or up)."""

    def links(self) -> list[LinkState]:
        """What joins the sites, as it is now."""

    def set_link(self, link: LinkSpec) -> None:
        """Makes the link between these two sites into this one, while everything runs; `spec` tells it from then on."""

    def measure_link(self, link: LinkSpec, bandwidth: bool) -> LinkMeasure:
        """Measures the latency, and the bandwidth when asked to, which fills the link for seconds."""

    def relink(self) -> None:
        """Makes every link what `spec` says: a daemon that was killed may have left it between two. Failed, after all
        others are made, when one could not be."""

    def repair(self) -> list[Repair]:
        """Starts anew what of the fabric has died by itself; what failed is told once for each reason, and tried
        again ever later. Nothing when the fabric is down."""

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
        """Makes the port, unplugged: a network namespace with its address and MAC, or a TAP device `pN.INDEX` in the
        host's own. Returns the path of the namespace."""

    def port_netns(self, port: Port) -> str:
        """Path of the port's namespace, made or not; the host's for a TAP."""

    def port_device(self, port: Port) -> str:
        """Name of the port's link at the host."""

    def port_plug(self, port: Port) -> None:
        """Plugs the port into the cluster's network at its host and announces it (gratuitous ARP)."""

    def port_unplug(self, port: Port) -> None:
        """Unplugs: from the return of this call nothing of the port reaches the network, nor the network it."""

    def port_down(self, port: Port) -> None:
        """Removes the port and its namespace."""

    def hold(self, port: Port) -> Hold:
        """A hold at the port's host, ready but not yet diverting."""
