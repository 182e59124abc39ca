"""A network adapter that an image cannot drive is refused before a machine boots without network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wherry.base.errors import Code, Refused
from wherry.model.records import AGENT_VERSION
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.parse import parse
from wherry.node.vm.emulated.driver import _require_driver


def test_an_adapter_without_a_driver_in_the_image_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    image = {"name": "default", "digest": "0", "built": 0.0, "kernel": "6", "packages": {}, "mpi": [], "bytes": 1}
    record = tmp_path / "images" / "default" / "image.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(image | {"agent": AGENT_VERSION}))
    old = {"kind": "vm", "name": "c", "nodes": 1, "nic": {"model": "pcnet"}}
    flavor = parse(ClusterSpec, old, "FILE").flavor(0)
    with pytest.raises(Refused, match="no driver for pcnet") as refused:
        _require_driver(flavor)
    assert (refused.value.code, refused.value.next) == (Code.UNSUPPORTED, "wherry image build")
    _require_driver(parse(ClusterSpec, old | {"nic": {"model": "e1000e"}}, "FILE").flavor(0))
    record.write_text(json.dumps(image | {"agent": AGENT_VERSION, "adapters": ["virtio", "pcnet"]}))
    _require_driver(flavor)
