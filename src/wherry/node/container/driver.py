"""Node kind `container`: made by an OCI runtime, moved by CRIU.

A node is one process tree below `wherry-init`, in its own PID, mount, IPC and UTS namespaces and in the network
namespace of its port. Its only connections to the outside are TCP connections of its own address, so CRIU can dump all
of it. All work at a host is behind `wherry.node.container.host`.
Invariant: a placement is named after instance, host and node; `stop` removes it in any state.
"""

from __future__ import annotations

from collections.abc import Mapping

from wherry.base.progress import Check, never_raises
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.move_check import Hindrance
from wherry.model.owner import Owner
from wherry.model.spec.cluster import Flavor
from wherry.node.container.carriage import MAX_CONNECTIONS
from wherry.node.container.host import ContainerHosts
from wherry.node.container.mover import ContainerMover
from wherry.node.protocol import Placement, Usage


class ContainerDriver:
    """Containers of one instance, on `hosts`."""

    kind = "container"

    def __init__(self, hosts: ContainerHosts) -> None:
        self._hosts = hosts

    def unsupported(self) -> str:
        return self._hosts.unsupported()

    def check(self, flavor: Flavor, owner: Owner) -> None:
        pass

    def files_obstacle(self, flavor: Flavor) -> str:
        return "containers see them without one"

    def parameters_obstacle(self, parameters: MigrationParameters) -> str:
        if parameters.zstd or parameters.downtime is not None:
            return "--zstd and --max-downtime are for virtual machines: leave them out, or use --compress"
        if parameters.connections > MAX_CONNECTIONS:
            return (
                f"the memory of a container goes over at most {MAX_CONNECTIONS} connections: give a smaller --parallel"
            )
        if parameters.deadline is not None and not parameters.may_post_copy:
            return "--deadline is for --mode post-copy and hybrid: leave it out"
        return ""

    def disk_obstacle(self, wanted: Mapping[str, int]) -> str:
        return self._hosts.disk_obstacle(wanted)

    def rate_obstacle(self, rate: float) -> str:
        return ""

    def move_obstacle(self, source: Placement, destination: Placement) -> str:
        here, there = self._hosts.of(source.host), self._hosts.of(destination.host)
        if obstacle := self._hosts.pair_obstacle(source.host, destination.host):
            return obstacle
        return (
            here.engine_obstacle()
            or there.engine_obstacle()
            or here.move_obstacle(source)
            or self._hosts.node_obstacle(source, destination)
            or self._hosts.disk_obstacle({destination.host: destination.node.disk})
        )

    def require_movable(self, placement: Placement) -> None:
        self._hosts.of(placement.host).require_movable(placement)

    def inspect(self, placement: Placement) -> tuple[Hindrance, ...]:
        return self._hosts.of(placement.host).inspect(placement)

    def start(self, placement: Placement, check: Check = never_raises) -> None:
        self._hosts.of(placement.host).start(placement, check)

    def stop(self, placement: Placement) -> None:
        self._hosts.of(placement.host).stop(placement)

    def alive(self, placement: Placement) -> bool:
        return self._hosts.of(placement.host).alive(placement)

    def bind(self, placement: Placement, directory: str) -> None:
        self._hosts.of(placement.host).bind(placement, directory)

    def shows(self, placement: Placement, directory: str) -> bool:
        return self._hosts.of(placement.host).shows(placement, directory)

    def unbind(self, placement: Placement, directory: str) -> None:
        self._hosts.of(placement.host).unbind(placement, directory)

    def usage(self, placement: Placement) -> Usage:
        return self._hosts.of(placement.host).usage(placement)

    def mover(
        self, source: Placement, destination: Placement, parameters: MigrationParameters | None = None
    ) -> ContainerMover:
        return ContainerMover(self._hosts, source, destination, parameters)

    def console_files(self, node: str) -> None:
        return None

    def forget(self, node: str) -> None:
        pass

    def orphans(self) -> list[tuple[str, str]]:
        return []

    def end_orphan(self, node: str, host: str) -> None:
        pass

    def sweep(self) -> None:
        self._hosts.sweep()
