"""The first messages between the daemon and the agent of a host, and the names of the objects that the agent has."""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field

from wherry.model.spec.base import Name

PROTOCOL = 6
"""Number of the protocol. Both sides have the same, as a host has the daemon's own bundle."""
LEASE = 28.0
"""Seconds for which an agent may act after its last message that reached the daemon (`wherry.agent.lease`): longer than
the silence after which the daemon gives up the connection, and shorter than any lease of nodes (SHORTEST_LEASE), so
that the agent that finds them stopped is a new one."""
ENTRANCE, NETWORK, CONTAINERS, RANKS = "entrance", "network", "containers", "ranks"
"""Objects of the agent: its entrance, its `HostNetwork`, its `ContainerHost` and its `RankHost`."""


class HostSetup(BaseModel):
    """The first message to an agent. `identity` is the daemon's: a host works for one at a time. Addresses are those on
    the wire between hosts: its own, those of the other hosts, and of the daemon's machine, where clusters' heads are.
    `vni` is the first VXLAN network identifier of the daemon, `mtu` the bytes of clusters' largest packet, 0 before it
    is found. `encrypted`: networks of clusters are on the encrypted wire, except between this host and the hosts of its
    site at `near`, which are not among the `peers`. With a `lease` nodes are stopped that many seconds after the host's
    last message that reached the daemon; those of a host that is declared `lost` stay so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: int
    instance: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,7}$")]
    identity: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    name: Name
    cores: float
    memory: int
    speed: float
    address: str
    peers: tuple[str, ...]
    near: tuple[str, ...] = ()
    head: str
    vni: int
    pool: str
    mtu: int = 0
    encrypted: bool = False
    lease: float = 0.0
    lost: bool = False


class Opened(BaseModel):
    """The agent's answer: its version; the kernel's boot, which hosts that share clocks and files have in common;
    whether nodes were stopped for want of a lease, and run now."""

    model_config = ConfigDict(frozen=True)

    version: str
    boot: str
    stood: bool = False


class Entrance(Protocol):
    """The first object of an agent."""

    def open(self, setup: HostSetup) -> Opened:
        """Takes the host for the daemon: ends an agent that an earlier connection of it left. Refused when the host
        works for another daemon, or under another name."""
