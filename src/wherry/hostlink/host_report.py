"""The report of a host on itself before it is in any fabric."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from wherry.model.records import HostFacts


class HostReport(BaseModel):
    """Facts of the machine, the Debian packages that it lacks, faults that no package can repair, and why no CRIU works
    there (nodes run, and cannot be moved)."""

    model_config = ConfigDict(frozen=True)

    facts: HostFacts
    packages: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    criu: str = ""
    release: str = ""
