"""Network adapters of virtual machines: QEMU's models, and the module of Linux that drives each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Adapter = Literal[
    "virtio",
    "e1000",
    "e1000e",
    "rtl8139",
    "pcnet",
    "ne2k_pci",
    "i82550",
    "i82557a",
    "i82557b",
    "i82557c",
    "i82558a",
    "i82558b",
    "i82559a",
    "i82559b",
    "i82559c",
    "i82559er",
    "i82562",
    "i82801",
    "tulip",
    "igb",
    "vmxnet3",
]
USUAL_ADAPTERS: tuple[Adapter, ...] = ("virtio", "e1000", "e1000e", "rtl8139")
"""Models that every image can drive."""
ADAPTER_DRIVERS: Mapping[Adapter, str] = {
    "virtio": "virtio_net",
    "e1000": "e1000",
    "e1000e": "e1000e",
    "rtl8139": "8139cp",
    "pcnet": "pcnet32",
    "ne2k_pci": "ne2k_pci",
    "i82550": "e100",
    "i82557a": "e100",
    "i82557b": "e100",
    "i82557c": "e100",
    "i82558a": "e100",
    "i82558b": "e100",
    "i82559a": "e100",
    "i82559b": "e100",
    "i82559c": "e100",
    "i82559er": "e100",
    "i82562": "e100",
    "i82801": "e100",
    "tulip": "tulip",
    "igb": "igb",
    "vmxnet3": "vmxnet3",
}
"""Model -> module. Models other than USUAL_ADAPTERS depend on the image's kernel and on QEMU's build."""

UNUSABLE_ADAPTERS: Mapping[str, str] = {
    "i82551": "Linux drives it with a firmware (e100/d102e_ucode.bin) that is not free, and so in no image",
}
"""Models that QEMU has and no node can have -> why."""


def qemu_device(model: str) -> str:
    """Name of the model's device in QEMU."""
    return "virtio-net-pci" if model == "virtio" else model
