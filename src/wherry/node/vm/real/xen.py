"""Nodes on real hosts that run Xen: PVH or PV guests, which Xen's toolstack migrates (xen_mover.py)."""

from __future__ import annotations

from wherry.base.errors import Code, Refused
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.owner import Owner
from wherry.model.spec.cluster import Flavor, NicSpec
from wherry.node.protocol import Placement
from wherry.node.vm.real import xen_xml
from wherry.node.vm.real.driver import RemoteVmDriver
from wherry.node.vm.real.xen_mover import XenMover


class XenDriver(RemoteVmDriver):
    """Xen guests of one instance."""

    def check(self, flavor: Flavor, owner: Owner) -> None:
        super().check(flavor, owner)
        if flavor.nic.queues > 1 or flavor.nic.vhost:
            what = "nodes on Xen hosts cannot have nic.queues and nic.vhost"
            raise Refused(Code.UNSUPPORTED, what, "their network adapter is Xen's own", "leave them out")
        if flavor.nic.model != NicSpec().model:
            what = f"nodes on Xen hosts cannot have the network adapter {flavor.nic.model}"
            raise Refused(Code.UNSUPPORTED, what, "their network adapter is Xen's own", "leave nic.model out")

    def parameters_obstacle(self, parameters: MigrationParameters) -> str:
        if parameters.mode not in ("auto", "pre-copy"):
            return f"Xen has no mode {parameters.mode}: it decides by itself when its rounds no longer converge"
        if parameters.connections or parameters.zstd or parameters.compress == "on":
            return "Xen sends over one connection, uncompressed"
        if parameters.deadline is not None:
            return "--deadline is for containers: leave it out"
        return "Xen decides by itself how long the node is frozen" if parameters.downtime is not None else ""

    def rate_obstacle(self, rate: float) -> str:
        return "Xen has no rate limit: leave --bandwidth out"

    def move_obstacle(self, source: Placement, destination: Placement) -> str:
        able = next((host.shadow_paging for host in self.fabric.spec.hosts if host.name == source.host), False)
        if source.guest != "pv" or able:
            return ""
        return (
            "Xen tracks the dirty pages of a pv guest only with shadow paging, and libvirt does not report that. "
            f"Use guest: pvh; or, where `xl dmesg` on {source.host} prints SHADOW_PAGING (if not, build Xen with "
            "CONFIG_SHADOW_PAGING), set shadow_paging: true for that host"
        )

    def describe(self, placement: Placement, kernel: str, initrd: str) -> str:
        return xen_xml.describe(self.instance, placement, kernel, initrd)

    def mover(
        self, source: Placement, destination: Placement, parameters: MigrationParameters | None = None
    ) -> XenMover:
        return XenMover(self, source, destination)
