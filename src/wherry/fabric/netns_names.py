"""Names of namespaces and links of emulated hosts: all follow from instance, site, host, node and cluster number."""

from __future__ import annotations

import re

from wherry.base.paths import Instance
from wherry.fabric import named_netns
from wherry.model.network import ClusterNetwork, Port
from wherry.model.spec.fabric import FabricSpec

TRUNK_END, TUNNEL, NEAR_TUNNEL = "d", "x", "y"
"""First letters of the links that join a site's bridge of a cluster; the last one is of real hosts alone."""


class NetnsNames:
    """The names of one fabric, whether the named objects exist or not. Paths are those of network namespaces."""

    def __init__(self, spec: FabricSpec, instance: Instance) -> None:
        self._prefix = instance.prefix
        self.sites = [site.name for site in spec.sites]
        self.site_of = {host.name: host.site for host in spec.hosts}
        self._index = {host.name: index for index, host in enumerate(spec.hosts)}

    def name(self, what: str) -> str:
        """The name of a namespace."""
        return f"{self._prefix}-{what}"

    def host(self, host: str) -> str:
        return named_netns.path(self.name(host))

    def site(self, site: str) -> str:
        return named_netns.path(self.name(f"site-{site}"))

    def port(self, host: str, owner: str) -> str:
        return named_netns.path(self.name(f"{host}-{owner}"))

    def trunk(self, host: str, cluster: int) -> str:
        """The site's end of a host's trunk for a cluster; the host's is `trunk_of`."""
        return f"{TRUNK_END}{self._index[host]}.{cluster}"

    def uplink(self, host: str) -> str:
        """The site's end of a host's `up0`."""
        return f"h{self._index[host]}"


def bridge_of(network: ClusterNetwork) -> str:
    """Name of a cluster's bridge, at hosts and sites."""
    return f"c{network.number}"


def trunk_of(cluster: int) -> str:
    """Name of the host's end of its trunk for a cluster."""
    return f"u{cluster}"


def tunnel_of(cluster: int) -> str:
    """Name of a cluster's VXLAN at a site."""
    return f"{TUNNEL}{cluster}"


def near_tunnel_of(cluster: int) -> str:
    """Name of a cluster's VXLAN to the hosts of the same site, where another one leads to all others."""
    return f"{NEAR_TUNNEL}{cluster}"


def link_of(port: Port) -> str:
    """Name of a port's link at its host."""
    return f"p{port.network.number}.{port.index}"


def cluster_of(link: str) -> int | None:
    """The number of the cluster of which this is a trunk, tunnel or port, at a host or site; None of other links."""
    match = re.fullmatch(rf"u(\d+)|{TUNNEL}(\d+)|{TRUNK_END}\d+\.(\d+)|p(\d+)\.\d+", link)
    return None if match is None else int(next(filter(None, match.groups())))


def is_port(link: str) -> bool:
    """True when a link of a cluster is one of its ports."""
    return link.startswith("p")
