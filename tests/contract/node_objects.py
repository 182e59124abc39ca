"""Processes of a container that hold a kernel object each, or are active all the time (tests/objects), and its moves.

Moves go through the steps of a mover, so a test may look or break something between any two of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from contract_names import INSTANCE
from test_node import NodeUnderTest

import waiting
from wherry.base.errors import Failed
from wherry.fabric.cgroup import Cgroup
from wherry.job.agent_client import AgentEndpoint
from wherry.model.owner import Owner
from wherry.node.container.local_host import LocalHost, LocalHosts
from wherry.node.container.processes import doings
from wherry.node.protocol import Placement

_SOURCES = Path(__file__).parent.parent / "objects"
_ROOT = Owner(uid=0, gid=0, home="/", cwd="/tmp")  # noqa: S108 - the node's own


def compile_objects(directory: Path) -> Path:
    """Builds the program of tests/objects."""
    binary = directory / "objects"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    sources = map(str, sorted(_SOURCES.glob("*.c")))
    subprocess.run(["gcc", *flags, "-o", str(binary), *sources, "-lrt"], check=True)
    return binary


class Objects:
    """A node with one process and one kernel object for each case."""

    def __init__(self, node_under_test: NodeUnderTest, program: Path) -> None:
        self.node_under_test, self._program = node_under_test, program
        self._hosts = LocalHosts(INSTANCE, node_under_test.fabric)

    def host_of(self, placement: Placement) -> LocalHost:
        """The host as its movers see it."""
        return self._hosts.of(placement.host)

    def directory(self, placement: Placement) -> Path:
        """The node's /tmp."""
        return self.host_of(placement).layout(placement).tmp

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        placement = self.node_under_test.source
        node = AgentEndpoint(placement.netns, placement.node.address, placement.key.get_secret_value())
        ended = node.run(list(arguments), _ROOT, {"PATH": "/usr/bin:/bin", **(environment or {})}, 60)
        assert ended.code == 0, ended

    def make(self, *cases: str, optional: tuple[str, ...] = (), environment: Mapping[str, str] | None = None) -> bool:
        """Starts the cases and waits until each has its object. Returns False if the kernel lacks an optional kind."""
        directory = self.directory(self.node_under_test.source)
        shutil.copy(self._program, directory / "objects")
        self.run("/tmp/objects", "/tmp", *cases, environment=environment)  # noqa: S108
        problems_by_case = {case: _report_of(directory / f"{case}.ready") for case in cases}
        assert not any(why for case, why in problems_by_case.items() if case not in optional), problems_by_case
        return not any(problems_by_case.values())

    def here(self) -> Placement:
        """Where the node runs."""
        driver, destination = self.node_under_test.driver, self.node_under_test.destination
        return destination if driver.alive(destination) else self.node_under_test.source

    def check(self, *cases: str) -> dict[str, str]:
        """Case -> what is wrong with its object."""
        directory = self.directory(self.here())
        (directory / "go").touch()
        return {case: obstacle for case in cases if (obstacle := _report_of(directory / f"{case}.result"))}

    def move(self) -> None:
        """A stop-and-copy move. If it fails, it is rolled back."""
        mover = self.node_under_test.mover()
        try:
            for step in self.node_under_test.steps(mover):
                step()
        except Failed:
            self.node_under_test.roll_back(mover)
            self.node_under_test.assert_runs_only_at(self.node_under_test.source)
            raise
        self.node_under_test.finish(mover)
        self.node_under_test.assert_runs_only_at(self.node_under_test.destination)

    def move_and_take_back(self) -> None:
        mover = self.node_under_test.mover()
        for step in self.node_under_test.steps(mover):
            step()
        self.node_under_test.roll_back(mover)
        self.node_under_test.assert_runs_only_at(self.node_under_test.source)

    def laps(self, *cases: str) -> dict[str, int]:
        """Case -> laps of an activity that were right. Fails when one of them has found something wrong."""
        directory, found = self.directory(self.here()), dict[str, int]()
        for case in cases:
            ended = directory / f"{case}.result"
            assert not ended.exists(), f"{case}: {ended.read_text()}; {self._doing()}"
            said = directory / f"{case}.now"
            found[case] = int(said.read_text().removeprefix("right ")) if said.exists() else 0
        return found

    def _doing(self) -> str:
        """The states of the node's processes, and this machine's load."""
        return f"{doings(Cgroup(self.here().cgroup).pids(), 60)}; load {os.getloadavg()}"

    def await_laps(self, *cases: str) -> None:
        """Returns when each activity has begun a lap since now, and was right."""
        begun = self.laps(*cases)

        def late() -> list[str]:
            return [case for case, laps in self.laps(*cases).items() if laps < begun[case] + 2]

        waiting.until(lambda: not late(), lambda: f"laps of {late()}; {self._doing()}")


def _report_of(file: Path) -> str:
    waiting.until(file.exists, f"what {file.stem} answers")
    return file.read_text()
