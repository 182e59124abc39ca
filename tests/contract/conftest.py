"""Drivers for the contract tests; drivers that this machine cannot run are skipped with the reason."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from contract_names import IMAGE, INSTANCE, MISSING
from script_node import node, sent  # noqa: F401 - fixtures

from wherry.base.errors import WherryError
from wherry.base.paths import native_program
from wherry.fabric.cgroup import Cgroup
from wherry.fabric.fake import FakeFabric
from wherry.fabric.netns import NetnsFabric
from wherry.fabric.protocol import Fabric
from wherry.model.network import ClusterNetwork, network_of
from wherry.model.spec.fabric import FabricSpec
from wherry.node.container.criu import probe as criu_probe
from wherry.node.container.driver import ContainerDriver
from wherry.node.container.local_host import LocalHosts
from wherry.node.container.tracking import Tracking
from wherry.node.fake import FakeDriver
from wherry.node.protocol import NodeDriver
from wherry.node.vm.emulated.driver import VmDriver
from wherry.node.vm.image.build import build
from wherry.node.vm.image.catalog import remove_image

if TYPE_CHECKING:
    from node_objects import Objects


def _spec() -> FabricSpec:
    hosts = [{"name": name, "site": name[0], "cores": 1, "memory": "1GiB"} for name in ("a1", "a2", "b1")]
    hosts[2]["facts"] = {"without_files": [MISSING]}
    sites = [{"name": "a"}, {"name": "b"}]
    return FabricSpec.model_validate({"kind": "fabric", "version": 1, "name": "x", "sites": sites, "hosts": hosts})


def _make(driver: str) -> Iterator[Fabric]:
    if driver == "netns" and os.geteuid() != 0:
        pytest.skip("network namespaces are root's")
    fabric: Fabric
    fabric = (
        FakeFabric(_spec()) if driver == "fake" else NetnsFabric(_spec(), INSTANCE, lambda: criu_probe.find().version)
    )
    fabric.down()
    fabric.up()
    try:
        yield fabric
    finally:
        fabric.down()
        if driver == "netns":
            for directory in (INSTANCE.run, INSTANCE.state):
                shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module", params=["fake", "netns"])
def fabric(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    """A fabric that is up: hosts a1, a2 at site a, b1 at site b."""
    yield from _make(request.param)


def _driver(kind: str, fabric: Fabric) -> NodeDriver:
    if kind == "vm":
        return VmDriver(INSTANCE, fabric)
    if kind == "fake":
        return FakeDriver(rounds=True)
    tracking = Tracking.COMPARISON if kind == "comparison" else None
    paged, sealed = not kind.startswith("unpaged"), kind.endswith("sealed")
    hosts = LocalHosts(INSTANCE, fabric, pager=paged, tracking=tracking, sealed=sealed)
    return ContainerDriver(hosts)


@contextmanager
def _image() -> Iterator[None]:
    """A private image, so that tests running at the same time are not affected."""
    try:
        build(IMAGE, [], lambda text: None, lambda: None)
    except WherryError as error:
        pytest.skip(str(error))
    yield
    remove_image(IMAGE)


@pytest.fixture(scope="module", params=["fake", "container", "unpaged", "vm"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[NodeDriver, Fabric]]:
    """A node driver and a fabric for its nodes. `unpaged`: containers whose memory CRIU sends; `comparison`: the pager
    does, as on a kernel that does not track writes; `sealed`, `unpaged-sealed`: all is encrypted."""
    fake = request.param == "fake"
    for fabric in _make("fake" if fake else "netns"):
        driver = _driver(request.param, fabric)
        if reason := driver.unsupported():
            pytest.skip(reason)
        if not fake:
            try:
                native_program("wherry-init")
            except WherryError as error:
                pytest.skip(str(error))
        with _image() if driver.kind == "vm" else nullcontext():
            try:
                yield driver, fabric
            finally:
                driver.sweep()


@pytest.fixture
def network(fabric: Fabric) -> Iterator[ClusterNetwork]:
    """A cluster network that is up on all hosts of the fabric."""
    network = network_of(fabric.spec.pool, 7)
    fabric.network_up(network)
    yield network
    fabric.network_down(network)


@pytest.fixture(scope="session")
def objects_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of tests/objects."""
    from node_objects import compile_objects  # it needs test_node, which needs this

    return compile_objects(tmp_path_factory.mktemp("objects"))


@pytest.fixture
def objects(nodes: tuple[NodeDriver, Fabric], objects_program: Path) -> Iterator[Objects]:
    """A node that can be moved, in which the program of tests/objects runs. It is not left frozen."""
    from node_objects import Objects
    from test_node import movable_node

    with movable_node(*nodes) as node_under_test:
        try:
            yield Objects(node_under_test, objects_program)
        finally:
            for placement in (node_under_test.source, node_under_test.destination):
                if Cgroup(placement.cgroup).exists():
                    Cgroup(placement.cgroup).thaw()
