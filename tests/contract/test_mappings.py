"""Mappings of files in a container that is moved again after a move that was rolled back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_names import INSTANCE
from test_node import NodeUnderTest, movable_node

import waiting
from wherry.fabric.protocol import Fabric
from wherry.job.agent_client import AgentEndpoint
from wherry.model.owner import Owner
from wherry.node.container.local_host import LocalHosts
from wherry.node.protocol import NodeDriver, Placement

pytestmark = pytest.mark.parametrize("nodes", ["container"], indirect=True)
ROOT = Owner(uid=0, gid=0, home="/", cwd="/tmp")  # noqa: S108 - the node's own
REMAPS = """
import ctypes, os, struct, time
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p] + [ctypes.c_size_t] * 5
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PLACE, SIZE, FIXED_SHARED = 0x7E0000000000, 8192, 0x11
for name in ("read", "written"):
    open(f"/tmp/{name}", "wb").write(bytes(SIZE))
libc.mmap(PLACE, SIZE, 1, FIXED_SHARED, os.open("/tmp/read", os.O_RDONLY), 0)
os.rename("/tmp/stage", "/tmp/mapped")
while not os.path.exists("/tmp/go"):
    time.sleep(0.01)
libc.munmap(PLACE, SIZE)
libc.mmap(PLACE, SIZE, 3, FIXED_SHARED, os.open("/tmp/written", os.O_RDWR), 0)
number = ctypes.c_uint64.from_address(PLACE)
while True:
    number.value += 1
    time.sleep(0.01)
"""
"""Maps a file for reading, and later another one for writing at the same place."""


@pytest.fixture
def running(nodes: tuple[NodeDriver, Fabric]) -> Iterator[NodeUnderTest]:
    """A container that runs and that this machine can move."""
    with movable_node(*nodes) as node_under_test:
        yield node_under_test


def test_a_mapping_at_the_place_of_another_is_restored_as_it_is(running: NodeUnderTest) -> None:
    """The kernel's /proc remembers how a mapping of this range was opened when one looked at it the last time."""

    def file(place: Placement, name: str) -> Path:
        return LocalHosts(INSTANCE, running.fabric).of(place.host).layout(place).private / "tmp" / name

    def grows(place: Placement) -> bool:
        before = file(place, "written").read_bytes()
        time.sleep(0.1)
        return file(place, "written").read_bytes() != before

    file(running.source, "remap.py").write_text(REMAPS)
    file(running.source, "stage").touch()
    node = running.source.node
    agent = AgentEndpoint(running.source.netns, node.address, running.source.key.get_secret_value())
    start = ["/bin/sh", "-c", "setsid python3 remap.py </dev/null >remap.log 2>&1 &"]
    assert agent.run(start, ROOT, {"PATH": "/usr/bin:/bin"}, waiting.bound()).code == 0
    waiting.until(file(running.source, "mapped").exists)
    mover = running.mover()
    for step in running.steps(mover)[:-1]:
        step()
    running.roll_back(mover)
    file(running.source, "go").touch()
    waiting.until(lambda: any(file(running.source, "written").read_bytes()[:8]))
    mover = running.mover()
    for step in running.steps(mover):
        step()
    running.finish(mover)
    running.assert_runs_only_at(running.destination)
    waiting.until(lambda: grows(running.destination))
