"""Many moves of one container leave nothing in the process that makes them: counted, as its size depends on more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_node import NodeUnderTest

from holdings import held
from wherry.fabric.protocol import Fabric
from wherry.node.protocol import NodeDriver

pytestmark = pytest.mark.parametrize("nodes", ["container", "unpaged"], indirect=True)
WARM_UP, MOVES = 3, 6


@pytest.fixture
def node(nodes: tuple[NodeDriver, Fabric]) -> Iterator[NodeUnderTest]:
    made = NodeUnderTest(*nodes)
    try:
        made.driver.start(made.source)
        if reason := made.driver.move_obstacle(made.source, made.destination):
            pytest.skip(reason)
        yield made
    finally:
        made.remove()


def move(node: NodeUnderTest) -> None:
    mover = node.mover()
    for step in node.steps(mover):
        step()
    node.finish(mover)
    node.source, node.destination = node.destination, node.source


def test_neither_descriptors_nor_threads_nor_objects(node: NodeUnderTest) -> None:
    """A leak grows in both series, by one for every move at least."""
    for _ in range(WARM_UP):
        move(node)
    counts = [held()]
    for _ in range(2):
        for _ in range(MOVES):
            move(node)
        counts.append(held())
    once, again = counts[1] - counts[0], counts[2] - counts[1]
    assert not {name: again[name] for name in again if min(once[name], again[name]) >= MOVES}
