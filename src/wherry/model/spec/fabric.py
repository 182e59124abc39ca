"""Fabric files: sites, hosts and the links between sites. A spec that exists is valid in itself."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from wherry.base.errors import Code, Refused
from wherry.base.units import format_duration, format_rate
from wherry.model.libvirt_uri import parse_uri
from wherry.model.overlay import Overlay
from wherry.model.spec.base import (
    MOST_HOSTS,
    MOST_SITES,
    Duration,
    Interface,
    Name,
    Rate,
    Share,
    Size,
    Spec,
    nearest,
    require_unique,
)
from wherry.model.spec.slurm import SlurmSpec
from wherry.model.ssh_uri import SCHEME, parse_ssh_uri

LARGEST_MTU = 65520
"""Of packets within a site, in bytes: a TAP, which holds frames during a move, takes no larger ones."""


class SiteSpec(Spec):
    """A site: hosts on one local network, whose packets have at most `mtu` bytes (emulated hosts only)."""

    name: Name
    mtu: int = Field(default=LARGEST_MTU, ge=576, le=LARGEST_MTU)


class FactsSpec(Spec):
    """Facts that an emulated host has instead of the machine's, to try refusals."""

    memory: Size | None = None
    without_cpu_features: tuple[str, ...] = Field(default=(), max_length=256)
    without_files: tuple[str, ...] = Field(default=(), max_length=256)


class HostSpec(Spec):
    """A host: its site, its size, its speed relative to the others. A real host has a `uri`, by which its libvirtd is
    reached; `bridge` is its bridge for nodes (`br0`, or `xenbr0` of a Xen host), and with `shadow_paging` its Xen
    was built with it. With `driver: ssh` the `uri` is `ssh://USER@HOST[:PORT]`, and `address` is the host's on the
    network between hosts (IPv4; not needed when it is the HOST of its `uri`).

    At speed 0.5 each CPU of an emulated host, and of its nodes, is half a CPU of the machine (CFS quota, period 5 ms).
    """

    name: Name
    site: Name
    cores: float = Field(gt=0, le=1024)
    memory: Size
    speed: float = Field(default=1.0, gt=0, le=1)
    facts: FactsSpec = FactsSpec()
    uri: str = ""
    address: str = ""
    bridge: Interface | None = None
    shadow_paging: bool = False

    @property
    def hypervisor(self) -> str:
        """`qemu` or `xen` of a real host with libvirt; empty of others."""
        return parse_uri(self.uri).hypervisor if self.uri and not self.by_ssh else ""

    @property
    def by_ssh(self) -> bool:
        """Whether the host is reached by SSH alone."""
        return self.uri.startswith(SCHEME)

    @property
    def wire(self) -> str:
        """The address of a host by SSH on the network between hosts."""
        return self.address or parse_ssh_uri(self.uri).host

    @property
    def plug(self) -> str:
        """The bridge of a real host to which nodes are attached."""
        return self.bridge or ("xenbr0" if self.hypervisor == "xen" else "br0")

    @field_validator("uri")
    @classmethod
    def _uri(cls, value: str) -> str:
        if value.startswith(SCHEME):
            return str(parse_ssh_uri(value))
        return str(parse_uri(value)) if value else value

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        return str(ipaddress.IPv4Address(value)) if value else value


FASTEST = 40 * 10**9
"""Largest bandwidth of a link in bit/s; no emulation on one machine is faster."""
MAX_LATENCY = 60.0
"""Largest latency of a link in seconds."""


def _possible_rate(value: int) -> int:
    if not 0 < value <= FASTEST:
        raise ValueError(f"{format_rate(value)} is impossible: more than 0, at most 40Gbit/s")
    return value


Bandwidth = Annotated[Rate, AfterValidator(_possible_rate)]


class DirectionSpec(Spec):
    """The figures of one direction of a link. Figures that are not declared are the machine's."""

    latency: Duration | None = None
    jitter: Duration | None = None
    bandwidth: Bandwidth | None = None
    loss: Share | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.latency is not None and self.latency > MAX_LATENCY:
            raise ValueError(f"latency: {self.latency:g}s is more than {MAX_LATENCY:g}s")
        if self.loss is not None and not 0 <= self.loss <= 1:
            raise ValueError(f"loss: {self.loss:g} is no share: write 0.01 or 1%")
        return self

    def described(self) -> str:
        """The declared figures as text: `latency 10.0 ms, bandwidth 1 Gbit/s`."""
        parts = [f"{name} {format_duration(value)}" for name in ("latency", "jitter") if (value := getattr(self, name))]
        parts += [f"bandwidth {format_rate(self.bandwidth)}"] if self.bandwidth else []
        parts += [f"loss {self.loss * 100:g}%"] if self.loss else []
        return ", ".join(parts) or "as the machine is"

    def declares(self) -> bool:
        """True when any figure is declared."""
        return any(getattr(self, name) is not None for name in DirectionSpec.model_fields)


class LinkSpec(DirectionSpec):
    """A link between two sites. Both directions have the same figures, except the figures that `reverse` declares."""

    between: tuple[Name, Name]
    reverse: DirectionSpec = DirectionSpec()
    overlay: Overlay = "none"

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if any((one.jitter or 0) > (one.latency or 0) for one in self.directions()):
            raise ValueError("jitter: it is larger than the latency, which it would make negative")
        return self

    @property
    def name(self) -> str:
        """`a--b`: a site's name has single hyphens only."""
        return "--".join(self.between)

    def described(self) -> str:
        """The declared figures as text: `there latency 10.0 ms, …; back …; overlay none`."""
        ways = zip(("there", "back"), self.directions(), strict=True)
        return "; ".join([*(f"{way} {one.described()}" for way, one in ways), f"overlay {self.overlay}"])

    def changed(self, source: str, figures: DirectionSpec, overlay: str | None, one_way: bool) -> LinkSpec:
        """The link with the declared ones of `figures`: in both directions, or with `one_way` from `source` only."""
        ways = [one.model_dump(exclude_none=True) for one in self.directions()]
        given = figures.model_dump(exclude_none=True)
        for end, way in zip(self.between, ways, strict=True):
            if not one_way or end == source:
                way.update(given)
        if any(way.get("jitter", 0) > way.get("latency", 0) for way in ways):
            why = "it would make the latency negative"
            raise Refused(Code.USAGE, "the jitter is larger than the latency", why, "give --latency too")
        there, back = ways
        # else undeclared ones would follow `there`
        back = {name: FASTEST if name == "bandwidth" else 0.0 for name in there} | back
        declared = {**dict.fromkeys(DirectionSpec.model_fields), **there}
        reverse = DirectionSpec.model_construct(**back)
        return self.model_copy(update={**declared, "reverse": reverse, "overlay": overlay or self.overlay})

    def directions(self) -> tuple[DirectionSpec, DirectionSpec]:
        """The figures of both directions, there and back."""
        there = {name: getattr(self, name) for name in DirectionSpec.model_fields}
        other = {name: getattr(self.reverse, name) for name in there}
        back = {name: there[name] if value is None else value for name, value in other.items()}
        return DirectionSpec.model_construct(**there), DirectionSpec.model_construct(**back)


BY_SSH = ("ssh", "slurm")
"""Drivers whose hosts are reached by SSH."""
SHORTEST_LEASE, LONGEST_LEASE = 30.0, 86400.0
"""Seconds. A daemon that restarts is away for less than the shortest one."""


class FabricSpec(Spec):
    """A fabric file: sites, hosts, links, and the address pool from which each cluster gets a /24.

    Hosts are emulated (`netns`) or real (`libvirt`, `ssh`, `slurm`); `bridge` is this machine's bridge to the network
    of hosts with libvirt. With `lease`, for `ssh` and `slurm`, nodes of a host are stopped that long after the daemon's
    last contact with it, until the next one, and a host is not declared lost before. With `slurm`, hosts are nodes of
    an allocation; a file without `hosts` has all nodes that may be in one, as Slurm names and describes them.
    With `encryption`, for both, frames of clusters cross the wire between hosts by WireGuard: `always`, or only where
    they leave a site (`between-sites`), which includes the way to and from this machine.
    `fake` makes nothing, for tests. Links join the sites as a tree.
    """

    kind: Literal["fabric"]
    version: Literal[1]
    name: Name
    driver: Literal["netns", "libvirt", "ssh", "slurm", "fake"] = "netns"
    lease: Duration | None = None
    encryption: Literal["never", "between-sites", "always"] = "never"
    slurm: SlurmSpec | None = None
    bridge: Interface | None = None
    pool: str = "10.77.0.0/16"
    underlay: str = "10.76.0.0/16"
    sites: tuple[SiteSpec, ...] = Field(min_length=1, max_length=MOST_SITES)
    hosts: tuple[HostSpec, ...] = Field(default=(), max_length=MOST_HOSTS)
    links: tuple[LinkSpec, ...] = Field(default=(), max_length=MOST_SITES - 1)  # a tree has no more

    @property
    def hypervisor(self) -> str:
        """The hypervisor of all hosts with libvirt, `qemu` or `xen`; empty of other fabrics."""
        return self.hosts[0].hypervisor if self.hosts else ""

    @property
    def encrypted(self) -> bool:
        """True when some frames cross the wire by WireGuard."""
        return self.encryption != "never"

    def plain_besides(self, one: HostSpec, other: HostSpec) -> bool:
        """True when packets between the two hosts are plain, though others are encrypted."""
        return self.encryption == "between-sites" and one.site == other.site

    def effective_links(self) -> tuple[LinkSpec, ...]:
        """The declared links; if there are none, links that join the sites in a line."""
        names = [site.name for site in self.sites]
        return self.links or tuple(LinkSpec(between=pair) for pair in zip(names, names[1:], strict=False))

    def link(self, one: str, other: str) -> LinkSpec:
        """The link between two sites. NOT_FOUND when none joins them."""
        for link in self.effective_links():
            if link.between in ((one, other), (other, one)):
                return link
        known = ", ".join(" - ".join(link.between) for link in self.effective_links())
        why = f"links: {known}" if known else "there is one site"
        raise Refused(Code.NOT_FOUND, f"no link joins {one} and {other}", why, "wherry site link")

    def with_link(self, link: LinkSpec) -> FabricSpec:
        """The fabric with this link instead of the one between the same sites. NOT_FOUND when none joins them."""
        old = self.link(*link.between).name
        return self.model_copy(
            update={"links": tuple(link if one.name == old else one for one in self.effective_links())}
        )

    def differs_in_figures_only(self, other: FabricSpec) -> bool:
        """True when the two differ in nothing, or in figures of links only."""
        same = [link.between for link in self.effective_links()] == [link.between for link in other.effective_links()]
        return same and self.model_copy(update={"links": ()}) == other.model_copy(update={"links": ()})

    @field_validator("pool", "underlay")
    @classmethod
    def _network(cls, value: str) -> str:
        network = ipaddress.ip_network(value)
        if network.version != 4 or network.prefixlen > 16 or not network.is_private:
            raise ValueError(f"{value} is not a private IPv4 network of /16 or larger")
        if network.is_loopback or network.is_link_local or network.is_reserved:
            raise ValueError(f"{value} is loopback, link-local or reserved: take one of 10.0.0.0/8")
        return value

    @model_validator(mode="after")
    def _whole(self) -> FabricSpec:
        sites = require_unique("site", [s.name for s in self.sites])
        require_unique("host", [h.name for h in self.hosts])
        for host in self.hosts:
            if host.site not in sites:
                raise ValueError(
                    f"host {host.name} is at site {host.site!r}, which is not declared{nearest(host.site, sites)}"
                )
        joined = {frozenset(link.between) for link in self.links}
        for link in self.links:
            for end in link.between:
                if end not in sites:
                    raise ValueError(f"a link ends at site {end!r}, which is not declared{nearest(end, sites)}")
            if link.between[0] == link.between[1]:
                raise ValueError(f"a link joins site {link.between[0]!r} with itself")
        if len(joined) != len(self.links):
            raise ValueError("two links join the same pair of sites")
        _no_loop(sites, joined)
        _no_island([site.name for site in self.sites], self.effective_links())
        _as_the_driver_needs(self)
        if ipaddress.ip_network(self.pool).overlaps(ipaddress.ip_network(self.underlay)):
            raise ValueError(f"pool {self.pool} and underlay {self.underlay} overlap")
        return self


def _as_the_driver_needs(spec: FabricSpec) -> None:
    """Checks the keys that real hosts need, or that only they may have."""
    libvirt, ssh = spec.driver == "libvirt", spec.driver in BY_SSH
    if not spec.hosts and spec.driver != "slurm":
        raise ValueError("hosts: at least one")
    if (spec.slurm is None) == (spec.driver == "slurm"):
        raise ValueError("slurm: is for driver: slurm, which needs it: {nodes: 4, time: 8h}, or {} in an allocation")
    for host in spec.hosts:
        if libvirt and (not host.uri or host.by_ssh):
            raise ValueError(f"host {host.name} has no uri, which a real host needs: qemu+ssh://10.0.0.1/system")
        if ssh and not host.by_ssh:
            raise ValueError(f"host {host.name} has no uri by which SSH reaches it: ssh://root@10.0.0.1")
        if (libvirt or ssh) and host.facts != FactsSpec():
            raise ValueError(f"host {host.name} is real, so facts cannot be declared for it")
        if host.uri and not (libvirt or ssh):
            raise ValueError(f"host {host.name} has a uri: real hosts need driver: libvirt, or driver: ssh")
        if host.shadow_paging and host.hypervisor != "xen":
            raise ValueError(f"host {host.name}: shadow_paging is only for hosts that run Xen")
        if host.hypervisor != spec.hypervisor:
            raise ValueError(
                f"host {host.name} runs {host.hypervisor} and host {spec.hosts[0].name} {spec.hypervisor}: no node "
                "moves between them; write a fabric file for each, with an instance of its own (WHERRY_INSTANCE)"
            )
        _as_its_wire_needs(host, ssh)
    if libvirt and spec.bridge is None:
        raise ValueError("bridge: name this machine's bridge to the network of the hosts' bridges")
    if spec.bridge is not None and not libvirt:
        raise ValueError("bridge: only for driver: libvirt")
    if (libvirt or ssh) and spec.links:
        raise ValueError("links: only for emulated hosts; those between real hosts cannot be changed")
    if len(uris := [host.uri for host in spec.hosts if host.uri]) > len(set(uris)):
        raise ValueError("two hosts have the same uri")
    if spec.lease is not None and not ssh:
        raise ValueError("lease: only for driver: ssh, and slurm")
    if spec.encryption != "never" and not ssh:
        raise ValueError("encryption: only for driver: ssh, and slurm")
    if spec.encryption == "between-sites" and len({host.site for host in spec.hosts}) < 2:
        raise ValueError("encryption: between-sites needs hosts: at two sites or more; write always, or never")
    if spec.lease is not None and not SHORTEST_LEASE <= spec.lease <= LONGEST_LEASE:
        raise ValueError(f"lease: from {SHORTEST_LEASE:g} seconds to a day")
    if ssh and len({host.wire for host in spec.hosts}) < len(spec.hosts):
        raise ValueError("two hosts have the same address")


def _as_its_wire_needs(host: HostSpec, ssh: bool) -> None:
    if host.address and not ssh:
        raise ValueError(f"host {host.name} has an address: only for driver: ssh")
    if ssh and host.bridge is not None:
        raise ValueError(f"host {host.name} has a bridge: only for driver: libvirt")
    if ssh and host.speed != 1:
        raise ValueError(f"host {host.name} has a speed: only emulated hosts can be made slower")
    if ssh:
        try:
            ipaddress.IPv4Address(host.wire)
        except ValueError:
            raise ValueError(
                f"host {host.name}: name its IPv4 address on the network between hosts (address:)"
            ) from None


def _no_loop(sites: set[str], links: set[frozenset[str]]) -> None:
    group = {site: {site} for site in sites}
    for one, other in links:
        if group[one] is group[other]:
            raise ValueError("the links close a loop; sites are joined as a tree")
        group[one] |= group[other]
        for site in group[other]:
            group[site] = group[one]


def _no_island(sites: Sequence[str], links: Sequence[LinkSpec]) -> None:
    reached = list(sites[:1])
    for here in reached:
        reached += [end for link in links if here in link.between for end in link.between if end not in reached]
    if left := [site for site in sites if site not in reached]:
        raise ValueError(
            f"no way leads from site {sites[0]!r} to site {left[0]!r}: declare a link, as {{between: [{sites[0]}, "
            f"{left[0]}]}}, or no links at all, which joins the sites in a line"
        )
