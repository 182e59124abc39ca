"""The fabric of tests of the netns fabric: made for a test, and whatever it leaves behind is a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator

import fabricports
import pytest

from wherry.fabric import named_netns
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.netns import NetnsFabric, sweep
from wherry.model.network import ClusterNetwork, network_of


@pytest.fixture
def fabric() -> Iterator[NetnsFabric]:
    sweep(fabricports.INSTANCE)
    before = fabricports.left()
    created = NetnsFabric(default_fabric(), fabricports.INSTANCE)
    created.up()
    yield created
    inside = [pid for name in named_netns.names(fabricports.INSTANCE.prefix) for pid in named_netns.processes(name)]
    created.down()
    assert fabricports.left() == before
    assert not [pid for pid in inside if os.path.exists(f"/proc/{pid}/ns/net")]


@pytest.fixture
def network(fabric: NetnsFabric) -> ClusterNetwork:
    network = network_of(fabric.spec.pool, 1)
    fabric.network_up(network)
    return network
