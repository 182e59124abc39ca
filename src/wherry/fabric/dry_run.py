"""An emulated fabric that is not made yet, for plans: its hosts are in memory, their files are this machine's."""

from __future__ import annotations

from wherry.fabric import host_facts
from wherry.fabric.fake import FakeFabric


class DryRunFabric(FakeFabric):
    """A fabric that refuses all that can be refused on the fabric that will be made."""

    def missing_files(self, host: str, paths: list[str]) -> list[str]:
        return host_facts.missing_files(self._host(host), paths)
