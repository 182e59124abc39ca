"""The state that tests find in a shared instance. A fixture restores it after each test, not a test's last lines.

A test may leave jobs, operations, clusters, tiles, drained hosts, nodes at other hosts, changed links and a killed
daemon: all of it is undone here. If that fails, or the test has failed, everything is removed, and is made anew before
the next test. So no test depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from waiting import bound, until
from wherry.base.errors import Failed, LostContact, Refused, WherryError
from wherry.client import Client
from wherry.fabric.default_fabric import TEXT
from wherry.model.records import NodeState
from wherry.service.component import service_parts

if TYPE_CHECKING:
    from realworld import RealInstance


@dataclass
class Found:
    """The state that a test finds."""

    nodes: dict[str, str] = field(default_factory=dict)
    """Node -> host. All run."""
    links: list[dict[str, Any]] = field(default_factory=list)
    jobs: set[str] = field(default_factory=set)
    """Those that run."""


class Kept:
    """An instance that is as it was made whenever a test begins."""

    def __init__(self, instance: RealInstance) -> None:
        self._instance = instance
        self._makes: list[Callable[[], object]] = []
        self._founds: list[Found] = []
        """The state that was found after each call of `_makes` so far."""
        self.fabric = TEXT
        """The file of its fabric."""
        self.places = True
        """Whether tests find nodes at the same hosts: machines take long to move."""
        self.mend: Callable[[], object] = bool
        """Repairs things that the removal of the instance needs."""

    def make(self, make: Callable[[], object]) -> None:
        """Has it made before the next test, and again whenever all was removed."""
        self._makes.append(make)

    @contextmanager
    def also(self, make: Callable[[], object]) -> Iterator[None]:
        """Has more of it made for the tests of the block."""
        self.make(make)
        try:
            yield
        finally:
            self._makes.pop()
            del self._founds[len(self._makes) :]
            self.give_back(failed=False)

    def be_there(self) -> None:
        """To be called before each test."""
        try:
            for make in self._makes[len(self._founds) :]:
                make()
                with Client(self._instance.instance, start=False) as client:
                    self._founds.append(self._look(client))
        except BaseException:
            self._remove()
            raise

    def give_back(self, failed: bool) -> None:
        """To be called after each test."""
        if self._founds and (failed or not self._taken_back()):
            self._remove()

    def _remove(self) -> None:
        self._founds.clear()
        self.mend()
        down = self._instance("down", "--all", "--yes")
        assert down.returncode == 0, down.stderr

    def _look(self, client: Client) -> Found:
        nodes, spec = client.nodes(), client.fabric()["fabric"]
        jobs = {job.id for job in client.jobs() if job.state.under_way}
        assert all(node.state == NodeState.RUNNING for node in nodes), nodes
        return Found({node.name: node.host if self.places else "" for node in nodes}, spec["links"], jobs)

    def _taken_back(self) -> bool:
        """Whether all is as it was made, after all possible changes were undone."""
        try:
            with suppress(LostContact):
                return self._taken_back_by_daemon()
            self._instance.start_daemon()
            return self._taken_back_by_daemon()
        except (WherryError, AssertionError):
            return False

    def _taken_back_by_daemon(self) -> bool:
        with Client(self._instance.instance, start=False) as client:
            self._take_back(client)
            return self._look(client) == self._founds[-1] and not client.operations(running=True)

    def _take_back(self, client: Client) -> None:
        found = self._founds[-1]
        for job in client.jobs():
            if job.state.under_way and job.id not in found.jobs:
                with suppress(Refused):  # it has ended
                    client.cancel_job(job.id, seconds=bound())
        for operation in client.operations(running=True):
            with suppress(Refused, Failed):  # its own error
                client.wait(operation.id, seconds=bound())
        for _, part in service_parts():
            part.end(self._instance.instance)
        if client.fabric()["fabric"]["links"] != found.links:
            self._instance.json("fabric", "up", self._instance.file("fabric.yaml", self.fabric))
        until(lambda: not any(host.down for host in client.hosts()), "hosts that answer")
        for host in client.hosts():
            if host.drained:
                client.wait(client.restore(host.name).id)
        clusters = {name.rpartition("-")[0] for name in found.nodes}
        for cluster in client.clusters():
            if cluster["name"] not in clusters:
                client.wait(client.down(cluster["name"], end_jobs=True).id)
        for node in client.nodes() if self.places else ():
            if node.state == NodeState.RUNNING and node.host != found.nodes.get(node.name, node.host):
                client.move(node.name, found.nodes[node.name])
