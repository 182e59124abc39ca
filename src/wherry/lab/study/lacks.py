"""What this machine cannot do and a level of a study may need: asked once, when a study begins, and kept with it."""

from __future__ import annotations

from wherry.base.errors import Refused
from wherry.base.paths import native_program
from wherry.client import process
from wherry.lab.study import applications

VM = "vm"
"""The doctor's name for virtual machines as nodes."""


def lacking() -> dict[str, str]:
    """Name -> reason: the doctor's findings, programs that were not built, applications that are not installed."""
    findings = process.examine()
    found = {finding["name"]: finding["text"] for finding in findings if finding["health"] != "ok"}
    if not any(finding["name"] == VM for finding in findings):
        found[VM] = "this version has no VM nodes"
    for kernel in ("sp",):
        try:
            native_program(f"npb-{kernel}-openmpi")
        except Refused as error:
            found[f"npb-{kernel}"] = str(error)
    return found | applications.lacking()
