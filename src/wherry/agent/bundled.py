"""The bundle out of which this process runs."""

from __future__ import annotations

from pathlib import Path

from wherry.hostlink.bundle import DIRECTORY


def bundle_digest() -> str:
    """The bundle's hash; empty outside one."""
    here = Path(__file__).resolve()
    return here.relative_to(DIRECTORY).parts[0] if here.is_relative_to(DIRECTORY) else ""
