"""Tiles on a network on chip from the command line: places, and a pair that the daemon's balancer brings together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import RealInstance, eventually, real_instance

from wherry.base.paths import native_program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="tiles are root's")
EXAMPLE = Path(__file__).parents[2] / "examples" / "tiles-mesh.yaml"
PONG = native_program("wherry-tiles").parents[1] / "lib" / "tile" / "pong"


@pytest.fixture
def some() -> Iterator[RealInstance]:
    """An instance without tiles."""
    with real_instance("ttme") as created:
        yield created
    assert created.all_resources()["processes"] == [] and not created.instance.run.exists()


def test_the_balancer_brings_a_pair_together_and_says_why(some: RealInstance) -> None:
    some.json("tile", "up", str(EXAMPLE), "--balance")
    echo = some.json("tile", "run", "--detach", "--tile", "0", str(PONG))["process"]
    words = ("8", "200", str(echo), "1000000")
    asker = some.json("tile", "run", "--detach", "--tile", "15", str(PONG), *words)["process"]
    shown = some("tile", "ps").stdout
    assert "PLACE" in shown and "3,3" in shown and "100 us longer for each hop on the mesh of 4x4" in shown

    def hops() -> int:
        table = some.json("tile", "ps")
        place = {tile["tile"]: tile["place"] for tile in table["tiles"]}
        one, other = (place[process["tile"]] for process in table["processes"])
        return int(abs(one[0] - other[0]) + abs(one[1] - other[1]))

    assert eventually(hops, 1) == 1
    assert eventually(
        lambda: "tiles.balance" in [event["kind"] for event in some.json("event", "list")["events"]], True
    )
    (event, *_) = (event for event in some.json("event", "list")["events"] if event["kind"] == "tiles.balance")
    assert event["target"] in (str(echo), str(asker))
    assert "messages a second with process" in event["text"] and "6 hops away, then" in event["text"], event
    some.json("tile", "down")


def test_a_mesh_without_places_is_refused(some: RealInstance) -> None:
    refused = some("tile", "up", "--tiles", "5", "--mesh", "2x2")
    assert refused.returncode != 0 and "2x2 has no place for 5 tiles" in refused.stderr
