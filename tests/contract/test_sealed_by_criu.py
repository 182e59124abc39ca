"""Memory that CRIU sends, where there is no pager: its page server's connection is encrypted as all others are."""

from __future__ import annotations

import dataclasses

import pytest
from engine_node import EngineNode, Mode
from test_engine_faults import kept, node  # noqa: F401 - fixtures
from test_engine_matrix import programs  # noqa: F401 - a fixture
from test_engine_streams import Wire

from wherry.node.container.host import Channel, Offer
from wherry.node.container.local_arrival import LocalArrival

pytestmark = pytest.mark.parametrize("nodes", ["unpaged-sealed"], indirect=True, scope="module")


def test_nothing_of_the_memory_that_criu_sends_is_seen(
    node: EngineNode,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wires, genuine = list[Wire](), LocalArrival.offer

    def offer(arrival: LocalArrival, *channels: Channel, streams: int = 1) -> dict[Channel, Offer]:
        offers = dict(genuine(arrival, *channels, streams=streams))
        if Channel.PAGES in offers:
            wires.append(Wire(arrival._underlay.netns, offers[Channel.PAGES], 1 << 62, bytes))
            offers[Channel.PAGES] = dataclasses.replace(wires[-1].offer)
        return offers

    monkeypatch.setattr(LocalArrival, "offer", offer)
    assert node.attempt(Mode(rounds=1)) == ""
    assert sum(len(wire.seen) for wire in wires) > 1 << 20
    assert not any(b"PEER=" in wire.seen or bytes(4000) in wire.seen for wire in wires)
