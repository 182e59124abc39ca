"""The interface of fabric drivers: hosts at sites, and clusters' networks on them.

Invariants: every call is idempotent; a port is absent, made (unplugged) or plugged; a driver finds by name everything
that it made, so a restarted daemon can remove the leftovers of a killed one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from wherry.fabric.host_counters import FrameCounter, HostCounters, HostUse
from wherry.model.network import ClusterNetwork, Port
from wherry.model.records import Host, HostFacts, Record
from wherry.model.spec.fabric import FabricSpec, LinkSpec


class HoldReport(Record):
    """Frames and bytes that a hold delivered, the frames for which it had no room, and the seconds for which it held
    them; None when it cannot hold."""

    frames: int = 0
    bytes: int = 0
    lost: int = 0
    held: float | None = None


class Traffic(Record):
    """Counters of one direction of a link: frames and bytes that entered it, frames `lost` by the declared loss and
    `dropped` by a full queue, and the bytes `waiting` in it."""

    frames: int = 0
    bytes: int = 0
    lost: int = 0
    dropped: int = 0
    waiting: int = 0


class LinkState(Record):
    """A link: how it is emulated, its counters (None: not counted), and the CPU seconds that the emulation used.

    `emulation` is `netem`, `wherry-link`, `none` (not emulated) or `dead` (about to be repaired); `overlay` is `up`
    while both gateways run, else `dead`; None for a link without an overlay.
    """

    link: LinkSpec
    emulation: str
    overlay: str | None = None
    there: Traffic | None = None
    back: Traffic | None = None
    cpu: float | None = None


class LinkMeasure(Record):
    """Measured between the first hosts of two sites: one-way latency (seconds) and TCP throughput (bit/s, headers
    counted) in each direction. None: not measured, or nothing came through."""

    latency: float | None = None
    latency_back: float | None = None
    there: float | None = None
    back: float | None = None


class Repair(Record):
    """A repair of a dead link: the restarted programs, or why the repair failed."""

    text: str
    failed: bool = False


class Hold(Protocol):
    """Buffers the frames for a moving port at the destination, so that no peer's TCP times out and backs off."""

    def divert(self) -> None:
        """Draws the port's MAC to this host (gratuitous ARP) and begins to buffer its frames."""

    def release(self) -> HoldReport:
        """Plugs the port at this host and delivers the buffered frames in order. Ends the hold."""

    def first_sent(self, timeout: float) -> float | None:
        """After a release: when (time.monotonic) the node first sent a program's data through the port; None when it
        sent none within `timeout` seconds."""

    def problem(self) -> str:
        """Before a release: how it has ended, with the frames that it held; empty while it holds. Cheap."""

    def give_back(self, source: Port) -> HoldReport:
        """In a roll-back: plugs the source's port and delivers to it the buffered frames and, until the drop, frames
        that still arrive. Stops drawing the MAC here; the caller then announces the source's port (`port_plug`)."""

    def drop(self) -> None:
        """Ends the hold and discards its frames. Idempotent; also safe before `divert`."""


class FileServers(Protocol):
    """Servers by which virtual machines see their user's directories, one for each cluster that has some."""

    def obstacle(self) -> str:
        """Why no server can be run here; empty when one can."""

    def can_export(self, path: str) -> bool:
        """False for a directory that a server cannot have, by its name or by the file system that it is on."""

    def up(
        self,
        name: str,
        netns: str,
        address: str,
        subnet: str,
        paths: Sequence[str],
        user: tuple[int, int],
        still: Callable[[], bool],
    ) -> None:
        """Starts the server of a cluster in the namespace at path `netns`, unless it runs there: at `address`, for
        `subnet`, of these directories, with the rights of `user` (uid, gid) for any client. Does nothing when `still`,
        which is asked while nothing else changes this server, is False: it is not wanted any more."""

    def log(self, name: str) -> Path:
        """The log of the server of a cluster, appended to; it may not be there."""

    def down(self, name: str) -> None:
        """Ends the server of a cluster. Idempotent."""


class Fabric(Protocol):
    """Hosts and networks. All paths are of this machine."""

    driver: str
    spec: FabricSpec
    uncounted: str
    """Why neither the traffic of nodes nor the load of hosts can be counted; empty when hosts count them."""
    leaves_machine: bool
    """Whether hosts are other machines, so that data from host to host can be read on the way."""

    def up(self) -> None:
        """Makes every site, host and link."""

    def down(self) -> None:
        """Removes everything that this instance's fabric ever made, with its ports and networks."""

    def is_up(self) -> bool:
        """True when all hosts exist."""

    def hosts(self) -> list[Host]:
        """The hosts as declared, with the facts known so far. Contacts none of them."""

    def facts(self, host: str) -> HostFacts:
        """Facts of one host; contacts it once."""

    def missing_files(self, host: str, paths: list[str]) -> list[str]:
        """Those of `paths` that the host lacks."""

    def reachable(self, host: str) -> bool:
        """True when the host answers. A host that is set down does not."""

    def set_lost(self, host: str, lost: bool) -> None:
        """Declares a host lost, so that it is not contacted and not waited for, or revokes that. Refused for emulated
        hosts."""

    def set_down(self, host: str, down: bool) -> None:
        """Emulates the loss and return of a host: takes its link to the site down or up."""

    def links(self) -> list[LinkState]:
        """The state of every link between sites."""

    def set_link(self, link: LinkSpec) -> None:
        """Replaces the link between the same two sites while everything runs, in `spec` too."""

    def measure_link(self, link: LinkSpec, bandwidth: bool) -> LinkMeasure:
        """Measures the latency and, with `bandwidth`, the throughput, which fills the link for seconds."""

    def relink(self) -> None:
        """Makes every link conform to `spec`, as a killed daemon may have left one half changed. Failed when a link
        could not be made; the others are made all the same."""

    def repair(self) -> list[Repair]:
        """Restarts the dead parts of the fabric; nothing when the fabric is down or a link is being changed. A failure
        is reported once per reason, and retried with exponential backoff."""

    def host_netns(self, host: str) -> str:
        """Path of the host's network namespace."""

    def host_address(self, host: str) -> str:
        """The host's address in the underlay."""

    def cgroup(self, host: str) -> str:
        """Name of the host's cgroup relative to the cgroup root of each controller, e.g. `wherry-main/a1`."""

    def network_up(self, network: ClusterNetwork) -> None:
        """Makes the cluster's network on every host."""

    def network_down(self, network: ClusterNetwork) -> None:
        """Removes the cluster's network from every host."""

    def update_paths(self) -> None:
        """Returns when the paths between all plugged ports are as fast as they become."""

    def counters(self, host: str, nodes: Sequence[str] = ()) -> HostCounters:
        """CPU time of the host's cgroup, and of those of its nodes that have one. LostContact when the host does not
        answer, Refused when it has no counters: its use is unknown then, not zero."""

    def use(self, host: str, nodes: Sequence[str] = ()) -> HostUse:
        """Memory and processes of the same. LostContact, Refused."""

    def frame_counter(self, host: str) -> FrameCounter:
        """A counter of the frames that nodes at the host send. LostContact, Refused."""

    def port_up(self, port: Port) -> str:
        """Makes the port, unplugged: a network namespace with its address and MAC, or a TAP device `pN.INDEX` in the
        host's own. Returns the path of the namespace."""

    def port_netns(self, port: Port) -> str:
        """Path of the port's namespace, whether it exists or not; the host's for a TAP."""

    def port_device(self, port: Port) -> str:
        """Name of the port's link at the host."""

    def port_plug(self, port: Port) -> None:
        """Plugs the port into the cluster's network at its host and announces it (gratuitous ARP)."""

    def port_unplug(self, port: Port) -> None:
        """Unplugs the port. Once this returns, no frame passes between the port and the network."""

    def port_down(self, port: Port) -> None:
        """Removes the port and its namespace."""

    def hold(self, port: Port) -> Hold:
        """A hold at the port's host, ready but not yet diverting."""
