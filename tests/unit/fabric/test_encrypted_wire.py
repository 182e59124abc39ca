"""The encrypted wire where it cannot be, and where it is not meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from ssh_world import spec

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance
from wherry.fabric import encrypted_wire, wireguard
from wherry.fabric.encrypted_wire import EncryptedWire
from wherry.fabric.ssh_hosts import clusters_mtu, setup_of


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
