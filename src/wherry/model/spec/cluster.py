"""Cluster files: how many nodes, what each is made like, and where nodes may be.

Invariant: a spec that exists is valid in itself.
"""

from __future__ import annotations

import math
import posixpath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from wherry.model.network import MOST_NODES
from wherry.model.spec.base import Name, Spec, name_of, size_of

SMALLEST_VM = 128 * 2**20
"""Bytes of memory below which a virtual machine does not boot: its system is in its memory."""


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
    mtu: int = Field(default=1500, ge=576, le=1500)  # MTU of wherry.fabric.netns_links
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
        return name_of(value)
    if posixpath.normpath(value) != value or not value.isprintable():
        raise ValueError(f"{value!r} is not the plain absolute path of a qcow2 file")
    return value


Kind = Literal["container", "vm"]
Guest = Literal["pvh", "pv"]
"""Kinds of Xen's guests: with the processor's help for virtual machines, and without it."""
Image = Annotated[str, BeforeValidator(lambda v: _image(v) if isinstance(v, str) else v)]
Cpus = Annotated[float, Field(gt=0, le=1024)]
Memory = Annotated[int, BeforeValidator(size_of), AfterValidator(_enough)]


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


NODES_AS_NUMBER, NODES_AS_GROUPS = "a number", "groups"
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
        Annotated[int, Field(ge=1, le=MOST_NODES), Tag(NODES_AS_NUMBER)]
        | Annotated[tuple[GroupSpec, ...], Tag(NODES_AS_GROUPS)],
        Discriminator(lambda value: NODES_AS_GROUPS if isinstance(value, list | tuple) else NODES_AS_NUMBER),
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
