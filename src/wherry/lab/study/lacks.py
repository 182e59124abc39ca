"""What this machine cannot do and a level of a study may need: asked once, when a study begins, and kept with it."""

from __future__ import annotations

from wherry.base.errors import Refused
from wherry.base.paths import native_program
from wherry.client import process
from wherry.lab.study import applications

VM = "vm"
"""Why there are no virtual machines as nodes."""
_VM_NEEDS = ("libvirt", "image")
"""The doctor's findings without which there are none; without KVM they are emulated, and slow."""


def lacking() -> dict[str, str]:
    """Name -> reason: the doctor's findings, programs that were not built, applications that are not installed."""
    found = {finding["name"]: finding["text"] for finding in process.examine() if finding["health"] != "ok"}
    if without := [found[name] for name in _VM_NEEDS if name in found]:
        found[VM] = without[0]
    for kernel in ("sp",):
        try:
            native_program(f"npb-{kernel}-openmpi")
        except Refused as error:
            found[f"npb-{kernel}"] = str(error)
    return found | applications.lacking()
