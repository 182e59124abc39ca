"""The largest packet on a way, also where a network between carries less than those at its ends and reports nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from names import own_name
from wherry.base.errors import Refused
from wherry.fabric import named_netns, path_mtu

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")
NEAR, FAR, BETWEEN = (f"{own_name('tpm')}-{end}" for end in ("near", "far", "between"))
ADDRESS = "10.81.0.2"


def ip(netns: str, *words: str) -> None:
    subprocess.run(["ip", "-n", netns, *words], check=True, timeout=60)


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two namespaces with 9000 bytes at each end, joined by a bridge in a third, of whose ports one has them, too."""
    monkeypatch.setattr(path_mtu, "_SECONDS", 0.1)  # an answer is there when the request is sent: one kernel
    for name in (NEAR, FAR, BETWEEN):
        named_netns.create(name)
    ip(BETWEEN, "link", "add", "lan0", "mtu", "9000", "type", "bridge")
    ip(BETWEEN, "link", "set", "lan0", "up")
    for name, address in ((NEAR, "10.81.0.1"), (FAR, ADDRESS)):
        port = name[-4:]
        ip(BETWEEN, "link", "add", port, "mtu", "9000", "type", "veth", "peer", "e", "mtu", "9000", "netns", name)
        ip(BETWEEN, "link", "set", port, "master", "lan0", "up")
        ip(name, "address", "add", f"{address}/24", "dev", "e")
        ip(name, "link", "set", "e", "up")
    yield
    for name in (NEAR, FAR, BETWEEN):
        named_netns.remove(name)


def largest(link: int = 9000) -> int:
    return named_netns.inside(named_netns.path(NEAR), lambda: path_mtu.largest([ADDRESS], link))


@pytest.mark.usefixtures("way")
def test_packets_are_as_large_as_the_narrowest_part_of_the_way() -> None:
    assert largest() == 9000
    assert largest(1500) == 1500, "no larger than this machine's own"
    ip(BETWEEN, "link", "set", FAR[-4:], "mtu", "1430")
    assert largest() == 1420, "the next smaller usual size"
    ip(BETWEEN, "link", "set", FAR[-4:], "mtu", "1200")
    with pytest.raises(Refused, match="not fit"):
        largest()


@pytest.mark.usefixtures("way")
def test_a_machine_that_answers_no_echo_gets_usual_packets() -> None:
    file = "/proc/sys/net/ipv4/icmp_echo_ignore_all"
    named_netns.inside(named_netns.path(FAR), lambda: open(file, "w").write("1"))
    assert largest() == 1500
    assert largest(1400) == 1400
