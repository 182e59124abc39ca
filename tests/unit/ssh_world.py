"""A fabric of hosts by SSH, and the setup that their agent gets."""

from __future__ import annotations

from typing import Any

from wherry.hostlink.entrance import PROTOCOL, HostSetup
from wherry.model.spec.fabric import FabricSpec


def spec(**change: Any) -> FabricSpec:
    """A fabric file with two hosts; `change` is of the first one."""
    first = {"name": "h1", "site": "a", "cores": 2, "memory": "1GiB", "uri": "ssh://root@127.0.0.1"} | change
    second = {"name": "h2", "site": "a", "cores": 2, "memory": "1GiB", "uri": "ssh://h2:22", "address": "127.0.0.2"}
    file = {"kind": "fabric", "version": 1, "name": "f", "driver": "ssh", "sites": [{"name": "a"}]}
    return FabricSpec.model_validate(file | {"hosts": [first, second]})


def setup(name: str = "h1", identity: str = "0" * 32) -> HostSetup:
    return HostSetup(
        protocol=PROTOCOL, instance="main", identity=identity, name=name, cores=1, memory=1 << 30, speed=1,
        address="127.0.0.1", peers=(), head="127.0.0.1", vni=1, pool="10.77.0.0/16",
    )  # fmt: skip
