"""The size of clusters' packets on hosts by SSH follows from the network between them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from realworld import RealInstance, real_instance
from sshhosts import FABRIC, SshLab, rows, temporary_lab

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.timeout(600),
]
LARGE, USUAL = 9000, 1500


@pytest.fixture
def lab() -> Iterator[SshLab]:
    """Three hosts, of which the third has a smaller network than the others and this machine."""
    with temporary_lab() as created:
        for host in ("h1", "h2"):
            created.hosts[host].run("ip", "link", "set", "eth0", "mtu", str(LARGE))
            created.namespaces.run("ip", "link", "set", host, "mtu", str(LARGE))
        created.namespaces.run("ip", "link", "set", "lan0", "mtu", str(LARGE))
        yield created


def up(world: RealInstance, *hosts: str) -> str:
    """The errors of `wherry fabric up` with these hosts."""
    return world("fabric", "up", world.file("machines.yaml", FABRIC + rows(*hosts))).stderr


def test_packets_are_as_large_as_the_network_between_hosts_carries(lab: SshLab) -> None:
    with real_instance("tpkt", lab.namespaces.enter, below=lab.shared) as world:
        assert "cannot" not in up(world, "h1", "h2")
        world.up("pair", 2)
        sizes = [
            world("exec", node, "--", "cat", "/sys/class/net/eth0/mtu").stdout.split() for node in ("pair-0", "pair-1")
        ]
        assert sizes == [[str(LARGE - 50)]] * 2

        def move() -> None:
            home = world.hosts_of("pair")["pair-1"]
            assert world.move("pair-1", "h1" if home == "h2" else "h2")["error"] is None

        world.run_under_ring("pair", "openmpi", move, ranks=2, pause=2)
        lab.hosts["h2"].run("ip", "link", "set", "eth0", "mtu", str(USUAL))
        assert f"its MTU is {USUAL}, and {LARGE} are needed" in up(world, "h1", "h2"), "nodes have it already"
        lab.hosts["h2"].run("ip", "link", "set", "eth0", "mtu", str(LARGE))
        world.kill_daemon()
        world.start_daemon()
        world.up("later", 1)
        assert world("exec", "later-0", "--", "cat", "/sys/class/net/eth0/mtu").stdout.split() == [str(LARGE - 50)]
        assert world("down", "pair").returncode == world("down", "later").returncode == 0
        assert "cannot" not in up(world, "h1", "h2", "h3")
        world.up("small", 1)
        assert world("exec", "small-0", "--", "cat", "/sys/class/net/eth0/mtu").stdout.split() == [str(USUAL - 50)]
