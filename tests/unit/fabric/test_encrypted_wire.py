"""The encrypted wire where it cannot be, and where it is not meant."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pydantic import ValidationError
from ssh_world import spec

from wherry.base.errors import Code, LostContact, Refused
from wherry.base.paths import Instance
from wherry.fabric import encrypted_wire, wireguard
from wherry.fabric.encrypted_wire import EncryptedWire
from wherry.fabric.host_network import HostNetwork, Losses
from wherry.fabric.protocol import Repair
from wherry.fabric.ssh_hosts import clusters_mtu, ends, setup_of
from wherry.fabric.wire_ends import WireEnds
from wherry.model.spec.fabric import FabricSpec


def test_a_machine_without_wireguard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted_wire, "directory", lambda _: tmp_path / "wire")
    monkeypatch.setattr(wireguard, "missing", lambda: ["wg", "wireguard-go"])
    with pytest.raises(Refused) as caught:
        EncryptedWire(Instance("tenc"), "h1", "/run/netns/none", 1).make("10.0.0.1", 1440)
    assert caught.value.code is Code.UNSUPPORTED and "at h1" in caught.value.what
    assert "wg and wireguard-go not installed" in caught.value.why and "apt-get install" in caught.value.next
    assert not list(tmp_path.iterdir())


def test_agents_get_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Instance, "state", property(lambda _: tmp_path))
    plain = spec()
    hidden = plain.model_copy(update={"encryption": "always"})
    assert [setup_of(each, Instance("tenc"), "h1").encrypted for each in (plain, hidden)] == [False, True]
    sizes = [clusters_mtu(each.model_copy(update={"driver": "slurm"}), Instance("tenc")) for each in (plain, hidden)]
    assert sizes == [1450, 1390]


def three(encryption: str, *sites: str) -> FabricSpec:
    """Three hosts at these sites."""
    hosts = [
        {"name": f"h{n}", "site": site, "cores": 1, "memory": "1GiB", "uri": f"ssh://root@127.0.0.{n}"}
        for n, site in enumerate(sites, 1)
    ]
    every = [{"name": site} for site in ("a", "b")]
    file = {"kind": "fabric", "version": 1, "name": "f", "driver": "ssh", "encryption": encryption, "sites": every}
    return FabricSpec.model_validate(file | {"hosts": hosts})


def test_agents_get_the_hosts_of_their_site_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Instance, "state", property(lambda _: tmp_path))
    setups = [setup_of(three("between-sites", "a", "a", "b"), Instance("tenc"), name) for name in ("h1", "h2", "h3")]
    assert all(setup.encrypted for setup in setups)
    near, far = [setup.near for setup in setups], [setup.peers for setup in setups]
    assert near == [("127.0.0.2",), ("127.0.0.1",), ()]
    assert far == [("127.0.0.3",), ("127.0.0.3",), ("127.0.0.1", "127.0.0.2")]
    for encryption in ("never", "always"):
        assert ends(three(encryption, "a", "a", "b"), "h1") == (("127.0.0.2", "127.0.0.3"), ())


def test_between_sites_needs_two_of_them() -> None:
    with pytest.raises(ValidationError, match="between-sites needs hosts: at two sites or more"):
        three("between-sites", "a", "a")
    batch = {"kind": "fabric", "version": 1, "name": "f", "driver": "slurm", "slurm": {}, "sites": [{"name": "a"}]}
    with pytest.raises(ValidationError, match="between-sites needs hosts"):
        FabricSpec.model_validate(batch | {"encryption": "between-sites"})


class Ends:
    """Hosts that answer `repair` so, or raise."""

    def __init__(self, answer: Losses | Exception) -> None:
        self.answer, self.keys = answer, 0

    def repair(self) -> Losses:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def encrypt(self) -> str:
        self.keys += 1
        raise LostContact(Code.UNREACHABLE, "host h2 does not answer")


def repaired(hosts: Ends, wire: WireEnds | None = None) -> list[Repair]:
    made = wire or WireEnds(Instance("tenc"), "wherry-tenc-gateway", lambda act: act(cast(HostNetwork, hosts), "h1"))
    return made.repair(three("always", "a", "a", "b"), 1390)


def test_silent_host_is_asked_again_later() -> None:
    assert repaired(Ends(LostContact(Code.UNREACHABLE, "host h1 does not answer"))) == []
    assert repaired(Ends(Losses())) == []


def test_end_that_cannot_be_made_again_is_reported_once() -> None:
    hosts = Ends(Losses(rules=True, wire=True))
    wire = WireEnds(Instance("tenc"), "wherry-tenc-gateway", lambda act: act(cast(HostNetwork, hosts), "h1"))
    first, second = repaired(hosts, wire), repaired(hosts, wire)
    assert [(one.failed, "h2 does not answer" in one.text) for one in first] == [(False, False), (True, True)]
    assert [one.failed for one in second] == [False] and hosts.keys == 2
    wire.close()
    assert repaired(hosts, wire) == [] and hosts.keys == 2
