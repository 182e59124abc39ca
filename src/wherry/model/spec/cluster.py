"""Cluster files: number, flavors and placement of nodes.

Invariant: a spec that exists is valid in itself.
"""

from __future__ import annotations

import math
import posixpath
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from wherry.base.cpu_list import parse_cpu_list
from wherry.model.adapters import Adapter
from wherry.model.network import MOST_NODES
from wherry.model.spec.base import MOST_HOSTS, MOST_SITES, Name, Spec, duration_of, name_of, size_of

SMALLEST_VM = 128 * 2**20
"""Least memory in bytes with which a virtual machine boots the image `default`, whose root file system is in memory."""


class PlacementSpec(Spec):
    """Initial placement: spread over hosts, evenly over sites (neighbours together), or packed on few sites and hosts.

    `placement: spread` and `placement: pack` are short for `spread: site` and `spread: pack`.
    """

    spread: Literal["host", "site", "pack"] = "host"
    max_per_host: int | None = Field(default=None, ge=1)


class NicSpec(Spec):
    """A virtual machine's network adapter. Without checksum offload frames leave the guest segmented and with
    checksums. For model virtio only: `queues`, at most one per CPU; `vhost`, whether the kernel handles them instead of
    QEMU (default: where it can).
    """

    model: Adapter = "virtio"
    checksum_offload: bool = True
    mtu: int = Field(default=1500, ge=576, le=1500)  # MTU of wherry.fabric.netns_links
    queues: int = Field(default=1, ge=1, le=8)
    vhost: bool | None = None

    @model_validator(mode="after")
    def _of_its_model(self) -> Self:
        if self.model != "virtio" and (self.queues > 1 or self.vhost):
            raise ValueError(f"{'queues' if self.queues > 1 else 'vhost'}: only for model: virtio")
        return self


def _cpus(value: object) -> object:
    """From the kernel's way to write them; one CPU may be a number."""
    return parse_cpu_list(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else value


class PinSpec(Spec):
    """The CPUs of its host that a node has to itself, and the NUMA node that its memory comes from. Without `cpus`
    they are chosen: as many as the node's, rounded up. `pin: cores` is short for that.
    """

    cpus: Annotated[
        tuple[int, ...], BeforeValidator(_cpus), Field(max_length=1024), AfterValidator(lambda v: tuple(sorted(set(v))))
    ] = ()
    memory: int | None = Field(default=None, ge=0, le=1023)


def _pin(value: object) -> object:
    """Expands the short form."""
    if isinstance(value, str):
        if value != "cores":
            raise ValueError(f"{value!r} is no pin: write cores, or keys such as {{cpus: 0-1, memory: 0}}")
        return {}
    return value


_SHORT = {"spread": "site", "pack": "pack"}


def _placement(value: object) -> object:
    """Expands the short form."""
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
    """True when an image is the path of a qcow2 file, and not the name of one of Wherry's."""
    return image.startswith("/")


def _image(value: str) -> str:
    if not names_disk(value):
        return name_of(value)
    if posixpath.normpath(value) != value or not value.isprintable():
        raise ValueError(f"{value!r} is not the plain absolute path of a qcow2 file")
    return value


Kind = Literal["container", "vm"]
Guest = Literal["pvh", "pv"]
"""Types of Xen guests: with hardware virtualization (pvh), and without (pv)."""
Image = Annotated[str, BeforeValidator(lambda v: _image(v) if isinstance(v, str) else v)]
Cpus = Annotated[float, Field(gt=0, le=1024)]
PinOrNone = Annotated[PinSpec | None, BeforeValidator(_pin)]
Feature = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.]{0,31}$")]
Memory = Annotated[int, BeforeValidator(size_of), AfterValidator(_enough)]


def _scratch(value: object) -> object:
    """A size, unless it is a word."""
    if value in ("memory", "disk"):
        return value
    try:
        return size_of(value)
    except ValueError:
        known = "write memory, disk, or a disk's size such as 200GiB"
        raise ValueError(f"{value!r} is no place for /tmp: {known}") from None


def _enough_scratch(value: str | int) -> str | int:
    if isinstance(value, int) and value < 16 * 2**20:
        raise ValueError("a disk needs at least 16MiB")
    return value


Scratch = Annotated[Literal["memory", "disk"] | int, BeforeValidator(_scratch), AfterValidator(_enough_scratch)]
_DISK = 4
"""The disk of a node whose size is not given, as a multiple of its memory."""


SHORTEST_LEASE, LONGEST_LEASE = 5.0, 366 * 86400.0
"""Seconds of a cluster's lease."""


def _lease(value: object) -> object:
    """A duration, unless it is `none`."""
    return value if value is None or value == "none" else duration_of(value)


def _bounded_lease(value: float | str | None) -> float | str | None:
    if isinstance(value, float) and not SHORTEST_LEASE <= value <= LONGEST_LEASE:
        raise ValueError(f"lease: from {SHORTEST_LEASE:g} seconds to a year")
    return value


Lease = Annotated[float | Literal["none"] | None, BeforeValidator(_lease), AfterValidator(_bounded_lease)]


class Flavor(Spec):
    """The properties of one node; `image`, `nic` and `guest` are for virtual machines, `tmp` is for containers."""

    kind: Kind
    cpus: Cpus
    memory: Memory
    image: Image
    nic: NicSpec
    guest: Guest
    pin: PinSpec | None
    tmp: Scratch

    @property
    def disk(self) -> int:
        """Bytes of the node's disk for /tmp; 0 when that is in its memory."""
        if isinstance(self.tmp, int):
            return self.tmp
        return _DISK * self.memory if self.tmp == "disk" else 0


class GroupSpec(Spec):
    """Equal nodes in a cluster of several kinds or sizes. Keys that a group leaves out come from the whole file."""

    count: int = Field(default=1, ge=1, le=MOST_NODES)
    kind: Kind | None = None
    cpus: Cpus | None = None
    memory: Memory | None = None
    image: Image | None = None
    nic: NicSpec | None = None
    guest: Guest | None = None
    pin: PinOrNone = None
    tmp: Scratch | None = None


NODES_AS_NUMBER, NODES_AS_GROUPS, PINS_AS_FLAG, PINS_AS_LIST = TAGS = ("a number", "groups", "a flag", "a list")
"""Tags of the two forms of `nodes` and of `pinned`, which `parse` removes from pydantic's errors."""


class ClusterSpec(Spec):
    """A cluster file. `nodes` is their number, or a list of groups, whose nodes are numbered consecutively. `kind` is
    the kind of the nodes; `image` and `nic` are for virtual machines, `guest` for Xen's. `sites` and `hosts` restrict
    where nodes may be; `pinned` lists the nodes that balancing never moves (true: all); `pin` binds nodes to CPUs;
    `needs` are absolute paths that hosts must have, and of which virtual machines get copies; `directories` are bound
    writable into the nodes, as the home and the directory of `wherry up` are. `tmp` is where a container has its /tmp:
    in its `memory`, or on its host's disk, of this size, or as `disk` of four times its memory. Ranks do without
    `without_cpu_features` (names as in /proc/cpuinfo): glibc is configured so, and nodes can move to hosts that lack
    them. Features that programs detect themselves are the user's responsibility. After its `lease` the cluster is
    removed (`none`: never); by default that is its owner's.
    """

    kind: Kind = "container"
    version: Literal[1] = 1
    name: Name
    nodes: Annotated[
        Annotated[int, Field(ge=1, le=MOST_NODES), Tag(NODES_AS_NUMBER)]
        | Annotated[tuple[GroupSpec, ...], Field(max_length=MOST_NODES), Tag(NODES_AS_GROUPS)],
        Discriminator(lambda value: NODES_AS_GROUPS if isinstance(value, list | tuple) else NODES_AS_NUMBER),
    ]
    cpus: Cpus = 1.0
    memory: Memory = 512 * 2**20
    sites: tuple[Name, ...] = Field(default=(), max_length=MOST_SITES)
    hosts: tuple[Name, ...] = Field(default=(), max_length=MOST_HOSTS)
    placement: Annotated[PlacementSpec, BeforeValidator(_placement)] = PlacementSpec()
    pinned: Annotated[
        Annotated[bool, Tag(PINS_AS_FLAG)]
        | Annotated[tuple[int, ...], Field(max_length=MOST_NODES), Tag(PINS_AS_LIST)],
        Discriminator(lambda value: PINS_AS_LIST if isinstance(value, list | tuple) else PINS_AS_FLAG),
    ] = False
    needs: tuple[str, ...] = Field(default=(), max_length=256)
    directories: tuple[str, ...] = Field(default=(), max_length=32)
    image: Image = "default"
    nic: NicSpec = NicSpec()
    guest: Guest = "pvh"
    pin: PinOrNone = None
    tmp: Scratch = "memory"
    lease: Lease = None
    without_cpu_features: tuple[Feature, ...] = Field(default=(), max_length=256)

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """The nodes as groups; a number is one group."""
        return (GroupSpec(count=self.nodes),) if isinstance(self.nodes, int) else self.nodes

    @property
    def size(self) -> int:
        """The number of nodes."""
        return sum(group.count for group in self.groups)

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of its nodes."""
        return frozenset(self._flavor(group).kind for group in self.groups)

    def flavor(self, index: int) -> Flavor:
        """The properties of node `index`; a surplus node has those of the last group."""
        for group in self.groups:
            index -= group.count
            if index < 0:
                break
        return self._flavor(group)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths that every host of its nodes must have."""
        return (*self.needs, *sorted({f.image for f in map(self._flavor, self.groups) if names_disk(f.image)}))

    def _flavor(self, group: GroupSpec) -> Flavor:
        own = {name: getattr(group, name) for name in Flavor.model_fields}
        values = {name: getattr(self, name) if value is None else value for name, value in own.items()}
        return Flavor.model_construct(**values)

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        if not 1 <= self.size <= MOST_NODES:
            raise ValueError(f"nodes: a cluster has 1 to {MOST_NODES} nodes, and these are {self.size}")
        for key in ("image", "nic", "guest"):
            given = "vm" not in self.kinds and getattr(self, key) != ClusterSpec.model_fields[key].default
            containers = [group for group in self.groups if self._flavor(group).kind == "container"]
            if given or any(getattr(group, key) is not None for group in containers):
                raise ValueError(f"{key}: only for kind: vm; a container sees the host's files and network")
        if (
            self.kinds == {"vm"}
            and self.tmp != "memory"
            or any(self._flavor(group).kind == "vm" and group.tmp is not None for group in self.groups)
        ):
            raise ValueError("tmp: only for kind: container; a virtual machine has its /tmp in its image")
        flavors = [self._flavor(group) for group in self.groups]
        if any(flavor.kind == "vm" and flavor.memory < SMALLEST_VM for flavor in flavors):
            raise ValueError("memory: a node of kind vm needs at least 128MiB")
        for flavor in flavors:
            if flavor.nic.queues > math.ceil(flavor.cpus):
                raise ValueError(f"nic.queues: {flavor.nic.queues} queues are more than {flavor.cpus:g} CPUs")
            if flavor.pin and 0 < len(flavor.pin.cpus) < flavor.cpus:
                raise ValueError(f"pin.cpus: {len(flavor.pin.cpus)} are fewer than the node's {flavor.cpus:g} CPUs")
        return self

    @model_validator(mode="after")
    def _pins(self) -> Self:
        for index in self.pinned if isinstance(self.pinned, tuple) else ():
            if not 0 <= index < self.size:
                raise ValueError(f"pinned: there is no node {index}; they are 0 to {self.size - 1}")
        return self

    def is_pinned(self, index: int) -> bool:
        """True when balancing never moves this node."""
        return self.pinned if isinstance(self.pinned, bool) else index in self.pinned

    @field_validator("needs", "directories")
    @classmethod
    def _absolute(cls, value: tuple[str, ...], about: ValidationInfo) -> tuple[str, ...]:
        for path in value:
            if not path.startswith("/"):
                raise ValueError(f"{about.field_name}: {path!r} is not an absolute path")
        return value
