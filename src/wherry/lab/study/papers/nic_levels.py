"""Levels of `nic-degradation`: connections of two ranks, from loopback to each network adapter that QEMU has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wherry.lab.study.levels import Level
from wherry.lab.study.requirements import NO_ADAPTER, VHOST
from wherry.lab.study.testbed import ClusterShape
from wherry.model.adapters import ADAPTER_DRIVERS, UNUSABLE_ADAPTERS

NATIVE = "native"
CONTAINER = Level("container", "container nodes on two hosts")
_MIB = 1 << 20
_LEAST_MEMORY = 256
"""Least memory of a VM in MiB."""
_USUAL = ("e1000", "e1000e", "rtl8139", "pcnet", "ne2k_pci", "i82557b", "i82559er")
"""Adapters that are measured without `adapters=all`; the paper has e1000 and virtio."""
_LEAST_RATE, _LEAST_SLOW_RATE = 2e6, 5e5
"""Bytes a second that a VM's adapter sends at least, emulated on a busy machine."""
_SLOW = ("ne2k_pci", "rtl8139")
"""Adapters of which the guest copies each frame itself, in accesses of two or four bytes, or into four buffers."""
USUAL, ALL = "USUAL", "ALL"
OWN, EC2 = "OWN", "EC2"
"""Interfaces by which clusters are made: Wherry's own, or the EC2 Query API, which has no choice of an adapter."""


@dataclass(frozen=True)
class Card:
    """A network adapter of VM nodes, and how many CPUs these have."""

    name: str
    text: str
    model: str
    cpus: int = 1
    queues: int = 1
    vhost: bool = False

    @property
    def least_rate(self) -> float:
        """Bytes a second; a program that sends slower than this hangs."""
        return _LEAST_SLOW_RATE if self.model in _SLOW else _LEAST_RATE

    def shape(self, largest: int) -> ClusterShape:
        """Two nodes on two hosts, with memory for messages of `largest` bytes: a buffer, and messages in transit."""
        memory = max(_LEAST_MEMORY, (largest + largest // 2) // _MIB + 192)
        return ClusterShape(
            f"nic-{self.name}".replace("_", "-"),
            2,
            ("a1", "a2"),
            cpus=float(self.cpus),
            memory=f"{memory}MiB",
            nic=self.model,
            queues=self.queues,
            vhost=self.vhost if self.model == "virtio" else None,
        )

    def why_not(self, unavailable: Mapping[str, str], chosen: str, clusters: str = OWN) -> str:
        """Why it is not measured on this machine; empty if it is."""
        if clusters == EC2 and self.name != ("virtio" if VHOST in unavailable else "vhost"):
            return (
                "the EC2 Query API has no choice of the adapter: instances have virtio, by vhost-net where it is there"
            )
        if why := UNUSABLE_ADAPTERS.get(self.model, "") or unavailable.get(f"{NO_ADAPTER}{self.model}", ""):
            return why
        if self.vhost and (why := unavailable.get(VHOST, "")):
            return why
        usual = self.model == "virtio" or self.model in _USUAL
        return "" if usual or chosen == ALL else "one of the family or of its time is measured; --set adapters=all"


def native(over_wire: bool) -> Level:
    """The level without a virtual network, over loopback or the wire between two hosts of the user."""
    return Level(NATIVE, f"native ({'TCP over the wire' if over_wire else 'loopback TCP'})")


def names() -> tuple[str, ...]:
    """Those of all levels."""
    return (NATIVE, CONTAINER.name, *(card.name for card in cards(2)))


def cards(queues: int) -> Sequence[Card]:
    """All adapters. Those with several CPUs are there twice: the gains of a second CPU and of queues differ."""
    several = f"virtio, {queues} CPUs"
    return (
        Card("virtio", "virtio", "virtio"),
        Card("vhost", "virtio, frames handled by the kernel (vhost-net)", "virtio", vhost=True),
        Card("virtio-cpus", f"{several}, one queue", "virtio", cpus=queues),
        Card("virtio-queues", f"{several}, {queues} queues", "virtio", cpus=queues, queues=queues),
        *(Card(model, model, model) for model in (*ADAPTER_DRIVERS, *UNUSABLE_ADAPTERS) if model != "virtio"),
    )
