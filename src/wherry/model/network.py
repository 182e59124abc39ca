"""Addresses of clusters: each has a /24 of the fabric's pool. Names and VNIs follow from its number, MACs from its
subnet."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from wherry.base.errors import Code, Refused


class ClusterNetwork(BaseModel):
    """A cluster's network as the fabric sees it. `number` is the VNI and the index of its /24 in the pool."""

    model_config = ConfigDict(frozen=True)

    number: int
    subnet: str


class Port(BaseModel):
    """The port of a node or head in its cluster's network, at one host. `owner` is the node's name or CLUSTER-head.

    With `tap`, for a virtual machine, it is a TAP device at the host with this many `queues`; else a network namespace.
    """

    model_config = ConfigDict(frozen=True)

    owner: str
    index: int
    host: str
    network: ClusterNetwork
    address: str
    mac: str
    tap: bool = False
    queues: int = 1


PREFIX = 24
"""Length of the prefix of a cluster's network."""
HEAD_INDEX = 254
MOST_NODES = 250
"""Most nodes of a cluster: the rest of its /24 is the head's address and a reserve."""


def free_number(pool: str, used: Iterable[int]) -> int:
    """The lowest cluster number whose /24 is free. NO_CAPACITY when the pool is used up."""
    taken, count = set(used), 2 ** (24 - ipaddress.ip_network(pool).prefixlen)
    for number in range(1, count):
        if number not in taken:
            return number
    raise Refused(
        Code.NO_CAPACITY, f"the address pool {pool} has no free /24", f"{count - 1} clusters use it", "wherry status"
    )


def network_of(pool: str, number: int) -> ClusterNetwork:
    """Network number `number` of the pool."""
    base = int(ipaddress.ip_network(pool).network_address) + (number << 8)
    return ClusterNetwork(number=number, subnet=f"{ipaddress.ip_address(base)}/{PREFIX}")


def address_of(network: ClusterNetwork, index: int) -> str:
    """Address of node `index` (0 … 249) or of the head (HEAD_INDEX)."""
    last = index if index == HEAD_INDEX else index + 1
    return str(ipaddress.ip_network(network.subnet).network_address + last)


def mac_of(network: ClusterNetwork, index: int) -> str:
    """A locally administered MAC, derived from subnet and node index.

    So clusters on one wire, even those of other instances and machines, have distinct MACs wherever their subnets are
    distinct. MACs of one cluster differ in the last byte only, so they are no secret from its nodes.
    """
    subnet = ipaddress.ip_network(network.subnet).network_address.packed[:3]
    return ":".join(f"{byte:02x}" for byte in (0x02, 0x77, *subnet, index & 255))
