"""The instance that tests of a worker share, and the fabric of tests of the netns fabric.

Each test gives an instance back as it got it. A fabric is made for a test, and whatever it leaves behind is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import fabricports
import pytest
from realworld import RealInstance, real_instance

from wherry.fabric import named_netns
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.netns import NetnsFabric, sweep
from wherry.model.network import ClusterNetwork, network_of


@pytest.fixture(scope="session")
def four() -> Iterator[RealInstance]:
    """The default fabric with a cluster of four nodes, one on each host, and a daemon that takes faults. All tests of
    this worker that can have the same instance have it."""
    with real_instance("tfou", WHERRY_FAULTS="1") as created:
        created.kept.make(lambda: created.up("four", 4, memory="192MiB", cpus=0.25))
        yield created


@pytest.fixture(autouse=True)
def given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives each instance that the test has back as it was made; see kept.py."""
    had = [one.kept for one in request.node.funcargs.values() if isinstance(one, RealInstance)]
    for kept in had:
        kept.be_there()
    before = request.session.testsfailed
    yield
    for kept in had:
        kept.give_back(failed=request.session.testsfailed > before)


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
