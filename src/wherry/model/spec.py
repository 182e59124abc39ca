"""What a user writes: fabric files and cluster files, validated strictly.

Invariant: a spec that exists is valid in itself; what depends on the machine is checked by the plan. Unknown keys are
errors that suggest the nearest known key. Sizes and durations carry units.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import posixpath
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from wherry.base.errors import Code, Refused
from wherry.base.units import format_duration, format_rate, parse_duration, parse_rate, parse_share, parse_size
from wherry.model.network import MOST_NODES
from wherry.model.uri import parse_uri

NAME = re.compile(r"[a-z][a-z0-9]{0,14}(-[a-z0-9]+)*")


def _size(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else _needs_unit(value, "512MiB")


def _duration(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else _needs_unit(value, "30s")


def _rate(value: object) -> object:
    return parse_rate(value) if isinstance(value, str) else _needs_unit(value, "100Mbit/s")


def _share(value: object) -> object:
    return parse_share(value) if isinstance(value, str) else value


def _needs_unit(value: object, example: str) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value} has no unit; write it as {example}")
    return value


def _name(value: str) -> str:
    if not NAME.fullmatch(value) or len(value) > 20:
        raise ValueError(
            f"{value!r} is no name: at most 20 lower-case letters, digits and inner hyphens, a letter first"
        )
    return value


Size = Annotated[int, BeforeValidator(_size)]
Duration = Annotated[float, BeforeValidator(_duration)]
Rate = Annotated[int, BeforeValidator(_rate)]
Share = Annotated[float, BeforeValidator(_share)]
Name = Annotated[str, BeforeValidator(lambda v: _name(v) if isinstance(v, str) else v)]
Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")]
"""A network interface, as Linux takes it."""


SMALLEST_VM = 128 * 2**20
"""Bytes of memory below which a virtual machine does not boot: its system is in its memory."""


class Spec(BaseModel):
    """Base of everything read from a file: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SiteSpec(Spec):
    """A place with its own local network."""

    name: Name


class FactsSpec(Spec):
    """Facts that an emulated host is given instead of the machine's, to try refusals."""

    memory: Size | None = None
    without_cpu_features: tuple[str, ...] = ()
    without_files: tuple[str, ...] = ()


class HostSpec(Spec):
    """A host: its site, its size, its speed relative to the others. Emulated, or real: then `uri` says how its libvirtd
    is reached, `bridge` which of its bridges nodes are at (`br0`, or `xenbr0` of a Xen host), and `shadow_paging` that
    its Xen was built with it.

    At speed 0.5 a CPU of an emulated host, and each of a node's there, is half a CPU of the machine (CFS quota, period
    5 ms).
    """

    name: Name
    site: Name
    cores: float = Field(gt=0, le=1024)
    memory: Size
    speed: float = Field(default=1.0, gt=0, le=1)
    facts: FactsSpec = FactsSpec()
    uri: str = ""
    bridge: Interface | None = None
    shadow_paging: bool = False

    @property
    def hypervisor(self) -> str:
        """`qemu` or `xen` of a real host; empty of an emulated one."""
        return parse_uri(self.uri).hypervisor if self.uri else ""

    @property
    def plug(self) -> str:
        """The bridge that nodes are at on a real host."""
        return self.bridge or ("xenbr0" if self.hypervisor == "xen" else "br0")

    @field_validator("uri")
    @classmethod
    def _uri(cls, value: str) -> str:
        return str(parse_uri(value)) if value else value


FASTEST = 40 * 10**9
"""Bits per second that a link can be declared to have at most; no emulation on one machine is faster."""
LONGEST = 60.0
"""Seconds of latency that a link can be declared to have at most."""


class DirectionSpec(Spec):
    """What a link does to frames of one direction. What is not declared is as the machine is."""

    latency: Duration | None = None
    jitter: Duration | None = None
    bandwidth: Rate | None = None
    loss: Share | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.latency is not None and self.latency > LONGEST:
            raise ValueError(f"latency: {self.latency:g}s is more than {LONGEST:g}s")
        if self.bandwidth is not None and not 0 < self.bandwidth <= FASTEST:
            raise ValueError(f"bandwidth: {format_rate(self.bandwidth)} is impossible: more than 0, at most 40Gbit/s")
        if self.loss is not None and not 0 <= self.loss <= 1:
            raise ValueError(f"loss: {self.loss:g} is no share: write 0.01 or 1%")
        return self

    def described(self) -> str:
        """`latency 10.0 ms, bandwidth 1 Gbit/s`, with what is declared."""
        parts = [f"{name} {format_duration(value)}" for name in ("latency", "jitter") if (value := getattr(self, name))]
        parts += [f"bandwidth {format_rate(self.bandwidth)}"] if self.bandwidth else []
        parts += [f"loss {self.loss * 100:g}%"] if self.loss else []
        return ", ".join(parts) or "as the machine is"

    def declares(self) -> bool:
        """True when any of it is declared."""
        return any(getattr(self, name) is not None for name in DirectionSpec.model_fields)


class LinkSpec(DirectionSpec):
    """What joins two sites. It is the same in both directions, but for what `reverse` declares for the way back."""

    between: tuple[Name, Name]
    reverse: DirectionSpec = DirectionSpec()
    overlay: Literal["none", "openvpn", "wireguard"] = "none"

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if any((one.jitter or 0) > (one.latency or 0) for one in self.directions()):
            raise ValueError("jitter: it is more than the latency that it changes")
        return self

    @property
    def name(self) -> str:
        """`a--b`: a site's own name can have single hyphens."""
        return "--".join(self.between)

    def described(self) -> str:
        """`there latency 10ms, …; back …; overlay none`, with what is declared."""
        ways = zip(("there", "back"), self.directions(), strict=True)
        return "; ".join([*(f"{way} {one.described()}" for way, one in ways), f"overlay {self.overlay}"])

    def changed(self, source: str, figures: DirectionSpec, overlay: str | None, one_way: bool) -> LinkSpec:
        """The link with other figures, those that are given: from the site `source` only, or in both directions."""
        ways = [one.model_dump(exclude_none=True) for one in self.directions()]
        given = figures.model_dump(exclude_none=True)
        for end, way in zip(self.between, ways, strict=True):
            if not one_way or end == source:
                way.update(given)
        if any(way.get("jitter", 0) > way.get("latency", 0) for way in ways):
            raise Refused(Code.USAGE, "the jitter is more than the latency that it changes", "", "give --latency too")
        there, back = ways
        back = {name: FASTEST if name == "bandwidth" else 0.0 for name in there} | back  # not "as there", if undeclared
        declared = {**dict.fromkeys(DirectionSpec.model_fields), **there}
        reverse = DirectionSpec.model_construct(**back)
        return self.model_copy(update={**declared, "reverse": reverse, "overlay": overlay or self.overlay})

    def directions(self) -> tuple[DirectionSpec, DirectionSpec]:
        """There and back."""
        there = {name: getattr(self, name) for name in DirectionSpec.model_fields}
        other = {name: getattr(self.reverse, name) for name in there}
        back = {name: there[name] if value is None else value for name, value in other.items()}
        return DirectionSpec.model_construct(**there), DirectionSpec.model_construct(**back)


class FabricSpec(Spec):
    """A fabric file: sites, hosts, links, and the address pool clusters take their /24 from.

    Hosts are emulated (`netns`) or real (`libvirt`); of real ones, `bridge` is this machine's way to their bridges.
    `fake` makes nothing: it is for tests. Links join the sites as one tree.
    """

    kind: Literal["fabric"]
    version: Literal[1]
    name: Name
    driver: Literal["netns", "libvirt", "fake"] = "netns"
    bridge: Interface | None = None
    pool: str = "10.77.0.0/16"
    underlay: str = "10.76.0.0/16"
    sites: tuple[SiteSpec, ...] = Field(min_length=1)
    hosts: tuple[HostSpec, ...] = Field(min_length=1)
    links: tuple[LinkSpec, ...] = ()

    @property
    def hypervisor(self) -> str:
        """What all real hosts run, `qemu` or `xen`; empty when hosts are emulated."""
        return self.hosts[0].hypervisor

    def joins(self) -> tuple[LinkSpec, ...]:
        """The links; when none is declared, those that join the sites in a line."""
        names = [site.name for site in self.sites]
        return self.links or tuple(LinkSpec(between=pair) for pair in zip(names, names[1:], strict=False))

    def link(self, one: str, other: str) -> LinkSpec:
        """The link between two sites. NOT_FOUND when none joins them."""
        for link in self.joins():
            if link.between in ((one, other), (other, one)):
                return link
        known = ", ".join(" - ".join(link.between) for link in self.joins())
        why = f"links: {known}" if known else "there is one site"
        raise Refused(Code.NOT_FOUND, f"no link joins {one} and {other}", why, "wherry site link")

    def with_link(self, link: LinkSpec) -> FabricSpec:
        """The same fabric, but for the link between these two sites. NOT_FOUND when none joins them."""
        old = self.link(*link.between).name
        return self.model_copy(update={"links": tuple(link if one.name == old else one for one in self.joins())})

    def differs_in_figures_only(self, other: FabricSpec) -> bool:
        """True when the other one is the same, or has the same links with other figures."""
        same = [link.between for link in self.joins()] == [link.between for link in other.joins()]
        return same and self.model_copy(update={"links": ()}) == other.model_copy(update={"links": ()})

    @field_validator("pool", "underlay")
    @classmethod
    def _network(cls, value: str) -> str:
        network = ipaddress.ip_network(value)
        if network.version != 4 or network.prefixlen > 16 or not network.is_private:
            raise ValueError(f"{value} is not a private IPv4 network of /16 or larger")
        if network.is_loopback or network.is_link_local or network.is_reserved:
            raise ValueError(f"{value} means something else (loopback, link-local or reserved): take one of 10.0.0.0/8")
        return value

    @model_validator(mode="after")
    def _whole(self) -> FabricSpec:
        sites = _unique("site", [s.name for s in self.sites])
        _unique("host", [h.name for h in self.hosts])
        for host in self.hosts:
            if host.site not in sites:
                raise ValueError(
                    f"host {host.name} is at site {host.site!r}, which is not declared{_near(host.site, sites)}"
                )
        joined = {frozenset(link.between) for link in self.links}
        for link in self.links:
            for end in link.between:
                if end not in sites:
                    raise ValueError(f"a link ends at site {end!r}, which is not declared{_near(end, sites)}")
            if link.between[0] == link.between[1]:
                raise ValueError(f"a link joins site {link.between[0]!r} with itself")
        if len(joined) != len(self.links):
            raise ValueError("two links join the same pair of sites")
        _no_loop(sites, joined)
        _no_island([site.name for site in self.sites], self.joins())
        _as_the_driver_needs(self)
        if ipaddress.ip_network(self.pool).overlaps(ipaddress.ip_network(self.underlay)):
            raise ValueError(f"pool {self.pool} and underlay {self.underlay} overlap")
        return self


def _as_the_driver_needs(spec: FabricSpec) -> None:
    """What real hosts need, and what only they have."""
    real = spec.driver == "libvirt"
    for host in spec.hosts:
        if real and not host.uri:
            raise ValueError(
                f"host {host.name} has no uri, by which a real host is reached: qemu+ssh://10.0.0.1/system"
            )
        if real and host.facts != FactsSpec():
            raise ValueError(f"host {host.name} is real, and has its own facts")
        if host.uri and not real:
            raise ValueError(f"host {host.name} has a uri: real hosts need driver: libvirt")
        if host.shadow_paging and host.hypervisor != "xen":
            raise ValueError(f"host {host.name} does not run Xen, so shadow_paging means nothing")
        if host.hypervisor != spec.hypervisor:
            raise ValueError(
                f"host {host.name} runs {host.hypervisor} and host {spec.hosts[0].name} {spec.hypervisor}: no node "
                "moves between them; write a fabric file for each, with an instance of its own (WHERRY_INSTANCE)"
            )
    if real and spec.bridge is None:
        raise ValueError("bridge: name the bridge of this machine that is on one wire with the hosts' bridges")
    if spec.bridge is not None and not real:
        raise ValueError("bridge: only for driver: libvirt")
    if real and spec.links:
        raise ValueError("links: those between real hosts are as they are")
    if len(uris := [host.uri for host in spec.hosts if host.uri]) > len(set(uris)):
        raise ValueError("two hosts have the same uri")


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


class PlacementSpec(Spec):
    """Where nodes begin: spread over hosts, evenly over sites (neighbours at one), or packed on few sites and hosts.

    `placement: spread` and `placement: pack` are short for `spread: site` and `spread: pack`.
    """

    spread: Literal["host", "site", "pack"] = "host"
    max_per_host: int | None = Field(default=None, ge=1)


class NicSpec(Spec):
    """A virtual machine's network adapter. Without checksum offload every frame is whole when it leaves the guest.
    Of model virtio alone: `queues`, at most one for each CPU; `vhost`, whether the kernel handles them instead of QEMU
    (where it can, when nothing is said).
    """

    model: Literal["virtio", "e1000", "e1000e", "rtl8139"] = "virtio"
    checksum_offload: bool = True
    mtu: int = Field(default=1500, ge=576, le=1500)  # MTU of wherry.fabric.links
    queues: int = Field(default=1, ge=1, le=8)
    vhost: bool | None = None

    @model_validator(mode="after")
    def _of_its_model(self) -> Self:
        if self.model != "virtio" and (self.queues > 1 or self.vhost):
            raise ValueError(f"{'queues' if self.queues > 1 else 'vhost'}: only for model: virtio")
        return self


_SHORT = {"spread": "site", "pack": "pack"}


def _placement(value: object) -> object:
    """The short form as the long one."""
    if isinstance(value, str):
        if value not in _SHORT:
            raise ValueError(f"{value!r} is no placement: write spread, pack, or keys such as {{spread: host}}")
        return {"spread": _SHORT[value]}
    return value


def _enough(value: int) -> int:
    if value < 16 * 2**20:
        raise ValueError("a node needs at least 16MiB of memory")
    return value


def names_disk(image: str) -> bool:
    """True when an image is not one of Wherry's but a qcow2 file, by its path."""
    return image.startswith("/")


def _image(value: str) -> str:
    if not names_disk(value):
        return _name(value)
    if posixpath.normpath(value) != value or not value.isprintable():
        raise ValueError(f"{value!r} is not the plain absolute path of a qcow2 file")
    return value


Kind = Literal["container", "vm"]
Guest = Literal["pvh", "pv"]
"""Kinds of Xen's guests: with the processor's help for virtual machines, and without it."""
Image = Annotated[str, BeforeValidator(lambda v: _image(v) if isinstance(v, str) else v)]
Cpus = Annotated[float, Field(gt=0, le=1024)]
Memory = Annotated[int, BeforeValidator(_size), AfterValidator(_enough)]


class Flavor(Spec):
    """What one node is made like; `image`, `nic` and `guest` are a virtual machine's."""

    kind: Kind
    cpus: Cpus
    memory: Memory
    image: Image
    nic: NicSpec
    guest: Guest


class GroupSpec(Spec):
    """Nodes that are alike, in a cluster of several kinds or sizes. What it does not say, the file says for all."""

    count: int = Field(default=1, ge=1, le=MOST_NODES)
    kind: Kind | None = None
    cpus: Cpus | None = None
    memory: Memory | None = None
    image: Image | None = None
    nic: NicSpec | None = None
    guest: Guest | None = None


_NUMBER, _GROUPS = "a number", "groups"
"""The two forms of `nodes`; pydantic would name them in every error."""


class ClusterSpec(Spec):
    """A cluster file. `nodes` is their number, or a list of groups, whose nodes follow each other. `kind` is the kind
    of the nodes; `image` and `nic` are of virtual machines, `guest` of Xen's. `sites` and `hosts` are where nodes may
    be, anywhere when none is named; `pinned` are those that balancing never moves (or all of them);
    `needs` are absolute paths that hosts must have, and of which virtual machines get copies.
    """

    kind: Kind = "container"
    version: Literal[1] = 1
    name: Name
    nodes: Annotated[
        Annotated[int, Field(ge=1, le=MOST_NODES), Tag(_NUMBER)] | Annotated[tuple[GroupSpec, ...], Tag(_GROUPS)],
        Discriminator(lambda value: _GROUPS if isinstance(value, list | tuple) else _NUMBER),
    ]
    cpus: Cpus = 1.0
    memory: Memory = 512 * 2**20
    sites: tuple[Name, ...] = ()
    hosts: tuple[Name, ...] = ()
    placement: Annotated[PlacementSpec, BeforeValidator(_placement)] = PlacementSpec()
    pinned: bool | tuple[int, ...] = False
    needs: tuple[str, ...] = ()
    image: Image = "default"
    nic: NicSpec = NicSpec()
    guest: Guest = "pvh"

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """The nodes as groups, also when the file says a number."""
        return (GroupSpec(count=self.nodes),) if isinstance(self.nodes, int) else self.nodes

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return sum(group.count for group in self.groups)

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of its nodes."""
        return frozenset(self._flavor(group).kind for group in self.groups)

    def flavor(self, index: int) -> Flavor:
        """What node `index` is made like; one that is more than the file says is like the last."""
        for group in self.groups:
            index -= group.count
            if index < 0:
                break
        return self._flavor(group)

    @property
    def files(self) -> tuple[str, ...]:
        """What every host of its nodes must have."""
        return (*self.needs, *sorted({f.image for f in map(self._flavor, self.groups) if names_disk(f.image)}))

    def _flavor(self, group: GroupSpec) -> Flavor:
        said = {name: getattr(group, name) for name in Flavor.model_fields}
        said = {name: getattr(self, name) if value is None else value for name, value in said.items()}
        return Flavor.model_construct(**said)

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        if not 1 <= self.size <= MOST_NODES:
            raise ValueError(f"nodes: a cluster has 1 to {MOST_NODES}, these are {self.size}")
        for key in ("image", "nic", "guest"):
            said = "vm" not in self.kinds and getattr(self, key) != ClusterSpec.model_fields[key].default
            contained = [group for group in self.groups if self._flavor(group).kind == "container"]
            if said or any(getattr(group, key) is not None for group in contained):
                raise ValueError(f"{key}: only for kind: vm; a container sees the host's files and network")
        flavors = [self._flavor(group) for group in self.groups]
        if any(flavor.kind == "vm" and flavor.memory < SMALLEST_VM for flavor in flavors):
            raise ValueError("memory: a node of kind vm needs at least 128MiB")
        for flavor in flavors:
            if flavor.nic.queues > math.ceil(flavor.cpus):
                raise ValueError(f"nic.queues: {flavor.nic.queues} are more than the CPUs, {flavor.cpus:g}")
        return self

    @model_validator(mode="after")
    def _pins(self) -> Self:
        for index in self.pinned if isinstance(self.pinned, tuple) else ():
            if not 0 <= index < self.size:
                raise ValueError(f"pinned: there is no node {index}; they are 0 to {self.size - 1}")
        return self

    def is_pinned(self, index: int) -> bool:
        """True when balancing leaves this node where it is."""
        return self.pinned if isinstance(self.pinned, bool) else index in self.pinned

    @field_validator("needs")
    @classmethod
    def _absolute(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if not path.startswith("/"):
                raise ValueError(f"needs: {path!r} is not an absolute path")
        return value


def _unique(noun: str, names: list[str]) -> set[str]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two {noun}s are named {name!r}")
    return set(names)


def _near(word: str, known: set[str] | list[str]) -> str:
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else f" (known: {', '.join(sorted(known))})"


AnySpec = TypeVar("AnySpec", bound=Spec)


def parse(kind: type[AnySpec], data: Any, source: str, command: str = "") -> AnySpec:
    """`data` (from YAML or JSON) as a spec. Refused INVALID_FILE names key, reason, and the nearest known key.

    When it was no file but the words of `command`, it is refused as USAGE.
    """
    if not isinstance(data, dict):
        raise Refused(Code.INVALID_FILE, f"{source} is not a mapping of keys to values", "", "see examples/")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        code, remedy = (Code.USAGE, f"{command} --help") if command else (Code.INVALID_FILE, "correct the file")
        why = "; ".join(_explain(kind, e) for e in error.errors())
        raise Refused(code, f"{source} is not valid", why, remedy) from None


def _explain(kind: type[BaseModel], error: Any) -> str:
    path = [part for part in error["loc"] if part not in (_NUMBER, _GROUPS)]
    where = ".".join(map(str, path))
    if error["type"] == "extra_forbidden":
        model: Any = kind
        for part in path[:-1]:
            if isinstance(part, str) and part in getattr(model, "model_fields", {}):
                model = _inner(model.model_fields[part].annotation)
        known = list(getattr(model, "model_fields", {}))
        return f"unknown key {where!r}{_near(str(path[-1]), known)}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _inner(annotation: Any) -> Any:
    """The first model that an annotation mentions; itself when it mentions none."""
    for argument in get_args(annotation):
        found = _inner(argument)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return annotation


def parse_yaml(kind: type[AnySpec], text: str, source: str) -> AnySpec:
    """A spec from YAML text. Refused INVALID_FILE with the line when it is not YAML or has a key twice."""
    try:
        data = yaml.load(text, _Strict)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two: no such date, nested without end
        raise Refused(
            Code.INVALID_FILE, f"{source} is not YAML", " ".join(str(error).split()), "correct the file"
        ) from None
    return parse(kind, data, source)


class _Strict(yaml.SafeLoader):
    """A safe loader that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"a key is no word (line {key.start_mark.line + 1})")
            if key.value in seen:
                raise yaml.YAMLError(f"the key {key.value!r} is given twice (line {key.start_mark.line + 1})")
            seen.add(key.value)
        return super().construct_mapping(node, deep)
