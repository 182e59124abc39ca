"""The part of a component (wherry.base.components) in the daemon of an instance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from wherry.base.components import parts
from wherry.base.paths import Instance
from wherry.service.findings import Finding
from wherry.store import Store


class ServicePart(Protocol):
    """A component's part; a module with these functions is one."""

    def hosts_in_use(self, instance: Instance, store: Store) -> list[str]:
        """The hosts that it uses now, which can neither be drained nor removed with the fabric."""
        ...

    def use_of(self, hosts: Sequence[str]) -> tuple[str, str]:
        """The reason why these hosts, which it uses, must stay, and the command that ends the use."""
        ...

    def findings(self) -> Iterator[Finding]:
        """Its lines of `wherry doctor`."""
        ...

    def end(self, instance: Instance) -> None:
        """Ends all that it runs for an instance that is being removed. Raises no error: see `remains`."""
        ...

    def remains(self, instance: Instance) -> list[str]:
        """Its programs of the instance as text, with or without the database."""
        ...


def service_parts() -> list[tuple[str, ServicePart]]:
    """The parts of the components that have one, by their names."""
    return parts("service")
