"""The common part of fabrics on real hosts: this machine has only the heads of clusters, in one namespace, and joins
hosts by links that it neither makes nor changes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance
from wherry.fabric import named_netns, netns_links
from wherry.fabric.cluster_paths import NoPaths
from wherry.fabric.netns import NetnsFabric
from wherry.fabric.protocol import LinkMeasure, LinkState, Repair
from wherry.model.records import Host, HostFacts
from wherry.model.spec.fabric import FabricSpec, LinkSpec

GATEWAY = "gateway"
"""A name that no host has: the network of the clusters' heads."""


class RealHostsFabric(NetnsFabric, ABC):
    """The part at this machine; subclasses have the part at hosts."""

    leaves_machine = True

    def __init__(self, spec: FabricSpec, instance: Instance) -> None:
        super().__init__(spec, instance)
        self._paths = NoPaths()

    def is_up(self) -> bool:
        return named_netns.exists(self._gateway)

    def hosts(self) -> list[Host]:
        return [
            Host(
                name=host.name, site=host.site, cores=host.cores, memory=host.memory, speed=host.speed,
                facts=self._facts.get(host.name),
            )
            for host in self.spec.hosts
        ]  # fmt: skip

    def facts(self, host: str) -> HostFacts:
        if host not in self._facts:
            self._facts[host] = self._ask_facts(host)
        return self._facts[host]

    @abstractmethod
    def _ask_facts(self, host: str) -> HostFacts:
        """The facts that the host reports. LostContact when it does not answer."""

    def set_down(self, host: str, down: bool) -> None:
        what = f"the loss of host {host} cannot be emulated"
        raise Refused(Code.UNSUPPORTED, what, "it is a real host", f"wherry host drain {host}")

    def links(self) -> list[LinkState]:
        return [LinkState(link=link, emulation="none") for link in self.spec.effective_links()]

    def set_link(self, link: LinkSpec) -> None:
        what = f"the link {link.name} cannot be changed"
        raise Refused(Code.UNSUPPORTED, what, "it joins real hosts, and is not emulated", "wherry site link")

    def measure_link(self, link: LinkSpec, bandwidth: bool) -> LinkMeasure:
        return LinkMeasure()

    def relink(self) -> None:
        """Does nothing: links between real hosts are not emulated."""

    def repair(self) -> list[Repair]:
        return []

    def host_netns(self, host: str) -> str:
        return named_netns.path(self._gateway)

    def _make_gateway(self) -> None:
        with self._lock:
            named_netns.create(self._gateway)
            netns_links.inside(named_netns.path(self._gateway), lambda ip: ip.isolate())
            self._forget()

    def _has_ports(self, host: str) -> bool:
        return self.is_up()

    @property
    def _gateway(self) -> str:
        return self._names.name(GATEWAY)
