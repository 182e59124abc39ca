"""Whom the user of an emulated host's QEMUs reaches: a program that took a QEMU over would be that user."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator

import pytest
from test_node import NodeUnderTest, movable_node

import waiting
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters
from wherry.node.netns_socket import in_netns
from wherry.node.protocol import NodeDriver
from wherry.node.vm.emulated.driver import VmDriver
from wherry.node.vm.qemu_user import QEMU_UID

pytestmark = [
    pytest.mark.parametrize("nodes", ["vm"], indirect=True, scope="module"),
    pytest.mark.timeout(900),
]
LIBVIRTD, RECEIVING, ELSEWHERE = 16509, 49160, 8000
"""Ports: a libvirtd's, one of those at which QEMUs receive, and any other."""
_CONNECT = """
import json, socket, sys
connected = []
for address, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((address, port), timeout=1.5).close()
        connected.append((address, port))
    except OSError:
        pass
print(json.dumps(connected))
"""


@pytest.fixture(scope="module")
def machine(nodes: tuple[NodeDriver, Fabric]) -> Iterator[NodeUnderTest]:
    """A running machine; the libvirtd of the host that it can be moved to runs, too."""
    with movable_node(*nodes) as node_under_test:
        assert isinstance(node_under_test.driver, VmDriver)
        node_under_test.driver.daemon(node_under_test.destination.host).connect().close()
        yield node_under_test


def connected(machine: NodeUnderTest, uid: int, to: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Those of the addresses and ports that a program of this user reaches from the source host's namespace."""
    netns = machine.fabric.host_netns(machine.source.host)
    rights = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
    command = ["nsenter", f"--net={netns}", *rights, "/usr/bin/python3", "-c", _CONNECT, json.dumps(to)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=waiting.bound(), check=True)
    return [(address, port) for address, port in json.loads(done.stdout)]


def addresses(machine: NodeUnderTest) -> tuple[str, str]:
    """Of the source's host and of the destination's."""
    fabric = machine.fabric
    return fabric.host_address(machine.source.host), fabric.host_address(machine.destination.host)


@contextlib.contextmanager
def listeners(machine: NodeUnderTest) -> Iterator[None]:
    """Of root, at both hosts."""
    with contextlib.ExitStack() as stack:
        for place in (machine.source, machine.destination):
            netns, address = machine.fabric.host_netns(place.host), machine.fabric.host_address(place.host)
            for port in (RECEIVING, ELSEWHERE):
                stack.enter_context(in_netns(netns, lambda at=(address, port): socket.create_server(at)))  # type: ignore[misc]
        yield


def test_qemu_reaches_no_libvirtd_and_no_receiving_qemu(machine: NodeUnderTest) -> None:
    """Neither its own host's libvirtd, which is root, nor another host's, nor a program that listens at a host."""
    ports = (LIBVIRTD, RECEIVING, ELSEWHERE)
    all_of_them = [(address, port) for address in addresses(machine) for port in ports]
    with listeners(machine):
        assert connected(machine, 0, all_of_them) == all_of_them
        assert connected(machine, QEMU_UID, all_of_them) == []


def test_qemu_that_sends_over_several_connections_reaches_its_destination(machine: NodeUnderTest) -> None:
    """It makes these connections itself; its host's libvirtd makes the one of any other move."""
    parameters = MigrationParameters(connections=2)
    mover = machine.mover(parameters)
    for step in machine.steps(mover):
        step()
    here, there = addresses(machine)
    every = [(address, port) for address in (here, there) for port in (LIBVIRTD, RECEIVING, ELSEWHERE)]
    with listeners(machine):
        during = connected(machine, QEMU_UID, every)
    machine.finish(mover)
    machine.assert_runs_only_at(machine.destination)
    assert during == [(there, RECEIVING)]
