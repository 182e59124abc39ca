"""A container node that shares a directory with us, as nodes share the directories of their user."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_node import NodeUnderTest

import waiting
from wherry.base.errors import WherryError
from wherry.fabric.protocol import Fabric
from wherry.job.agent_client import AgentEndpoint
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.owner import Owner
from wherry.node.container.driver import ContainerDriver
from wherry.node.protocol import NodeDriver

ROOT = Owner(uid=0, gid=0, home="/", cwd="/")


class SharedNode:
    """It runs at `source`; `directory` has one path for it and for us."""

    def __init__(self, node_under_test: NodeUnderTest, directory: Path) -> None:
        self.node_under_test, self.directory = node_under_test, directory
        node_under_test.source, node_under_test.destination = (
            placement.model_copy(update={"binds": (str(directory),)})
            for placement in (node_under_test.source, node_under_test.destination)
        )
        node_under_test.driver.start(node_under_test.source)

    def run_in_node(self, script: str) -> int:
        node = self.node_under_test.source
        agent = AgentEndpoint(node.netns, node.node.address, node.key.get_secret_value())
        return agent.run(["/bin/sh", "-c", script], ROOT, {"PATH": "/usr/bin:/bin"}, waiting.bound()).code

    def move(self, mode: str = "auto") -> None:
        """To its destination, which is its source afterwards. A move that fails is rolled back."""
        node_under_test = self.node_under_test
        mover = node_under_test.mover(MigrationParameters.model_validate({"mode": mode}))
        try:
            for step in node_under_test.steps(mover, post_copy=mode == "post-copy"):
                step()
        except WherryError:
            node_under_test.roll_back(mover)
            raise
        node_under_test.finish(mover)
        node_under_test.assert_runs_only_at(node_under_test.destination)
        node_under_test.source, node_under_test.destination = node_under_test.destination, node_under_test.source


@contextmanager
def shared_directory(nodes: tuple[NodeDriver, Fabric]) -> Iterator[tuple[NodeUnderTest, Path]]:
    """A node that can be moved and does not run yet, and a directory to share with it."""
    assert isinstance(nodes[0], ContainerDriver)
    with tempfile.TemporaryDirectory(prefix="wherry-", dir="/var/tmp") as name:  # noqa: S108 - shared with the node
        node_under_test = NodeUnderTest(*nodes)
        try:
            if reason := node_under_test.driver.move_obstacle(node_under_test.source, node_under_test.destination):
                pytest.skip(reason)
            yield node_under_test, Path(name)
        finally:
            node_under_test.remove()
