"""The choices: instance types, images, zones; and the ids of all that has no row.

Ids are hashes: the same thing has the same id at each daemon and after each restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from wherry.base.units import format_size
from wherry.model.records import Image
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.ec2.errors import Ec2Error, invalid
from wherry.service.image_commands import ImageCommands

_MIB = 2**20
CONTAINER = "container"
"""The image of nodes that are containers."""
OTHER_TYPE = "w1.other"
"""The type of nodes of other interfaces, whose size is none of these."""


def made_id(prefix: str, *parts: str) -> str:
    """An id of EC2's form, of the parts that name a thing."""
    return f"{prefix}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:17]}"


@dataclass(frozen=True)
class InstanceType:
    """CPUs, and bytes of memory."""

    name: str
    cpus: float
    memory: int

    @property
    def described(self) -> str:
        """For people."""
        return f"{self.cpus:g} CPUs, {format_size(self.memory)}"


TYPES: Mapping[str, InstanceType] = {
    f"w1.{name}": InstanceType(f"w1.{name}", cpus, memory * _MIB)
    for name, cpus, memory in (
        ("nano", 0.25, 128), ("micro", 0.5, 256), ("small", 1.0, 512), ("medium", 1.0, 1024), ("large", 2.0, 2048),
        ("xlarge", 4.0, 4096), ("2xlarge", 8.0, 8192), ("4xlarge", 16.0, 16384),
    )
}  # fmt: skip


def type_named(name: str) -> InstanceType:
    """One by its name. InvalidParameterValue."""
    if name not in TYPES:
        raise invalid("InstanceType", name, f"Known: {', '.join(TYPES)}")
    return TYPES[name]


def type_of(cpus: float, memory: int) -> str:
    """The name of the type that a node has."""
    return next((one.name for one in TYPES.values() if (one.cpus, one.memory) == (cpus, memory)), OTHER_TYPE)


def image_id(name: str) -> str:
    """The id of an image."""
    return made_id("ami", "image", name)


def images(context: ServiceContext, peer: PeerCredentials) -> dict[str, tuple[str, Image | None]]:
    """By id: the name of an image, and its record if its nodes are virtual machines."""
    found: list[tuple[str, Image | None]] = [(CONTAINER, None)]
    found += [(image.name, image) for image in ImageCommands(context, peer).all()]
    return {image_id(name) if image else CONTAINER_ID: (name, image) for name, image in found}


CONTAINER_ID = image_id(f" {CONTAINER}")
"""Its id: of a text that is no name of an image, which may be `container`, too."""


def zones(context: ServiceContext) -> list[str]:
    """The sites of the fabric, or of the fabric that the first cluster makes."""
    managers = context.managers or context.planning_managers()
    return [site.name for site in managers.fabric.spec.sites]


def pool(context: ServiceContext) -> str:
    """The addresses from which clusters have theirs."""
    return (context.managers or context.planning_managers()).fabric.spec.pool


def require_zone(context: ServiceContext, name: str) -> None:
    """InvalidParameterValue unless there is such a zone."""
    if name not in (known := zones(context)):
        raise Ec2Error("InvalidParameterValue", f"Invalid availability zone: [{name[:64]}]. Known: {', '.join(known)}")


def subnet_id(zone: str) -> str:
    """The id of a zone's subnet."""
    return made_id("subnet", zone)


VPC, SECURITY_GROUP = made_id("vpc", "default"), made_id("sg", "default")
