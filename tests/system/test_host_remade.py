"""A host whose namespace somebody removed, `ip netns delete` for instance, is made again by the next `fabric up`."""

from __future__ import annotations

import os
import threading

import pytest

from names import own_name
from wherry.base.paths import Instance
from wherry.fabric import named_netns
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.netns import NetnsFabric, sweep

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's")


def test_a_host_is_made_again_while_its_old_namespace_lives() -> None:
    instance = Instance(own_name("thrm"))
    sweep(instance)
    fabric, over, entered = NetnsFabric(default_fabric(), instance), threading.Event(), threading.Event()

    def stay() -> None:
        entered.set()
        over.wait(60)

    fabric.up()
    keeper = threading.Thread(target=named_netns.inside, args=(fabric.host_netns("a1"), stay))
    try:
        assert fabric.is_up()
        keeper.start()
        assert entered.wait(10)
        named_netns.remove(f"{instance.prefix}-a1")
        assert not fabric.is_up() and not fabric.reachable("a1")
        fabric.up()
        assert fabric.is_up() and fabric.reachable("a1")
    finally:
        over.set()
        keeper.join()
        fabric.down()
    assert not named_netns.names(instance.prefix)
