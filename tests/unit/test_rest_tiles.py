"""Tiles over REST, with the real ones: started, told, a program on them, moved, ended; and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rest_service import FABRIC, Service, running

from wherry.base.errors import Code, Refused, WherryError
from wherry.base.paths import native_library
from wherry.client import Client
from wherry.service.credentials import PeerCredentials
from wherry.service.tiles import Tiles

TILES = {"tiles": 3, "cores": 2}


def program(name: str) -> str:
    return str(native_library("tile") / name)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.place, start=False) as made:
        yield made
        with suppress(Refused):
            made.tiles_down()


def test_tiles_are_started_used_and_ended(client: Client) -> None:
    up = client.tiles_up(TILES, "FILE")
    assert [tile["alive"] for tile in up["tiles"]] == [True] * 3 and up["processes"] == []
    process = client.start_on_tile(program("hold"), [], 1)
    assert (process["state"], process["tile"]) == ("running", 1)
    for mode, to in (("precopy", 2), ("handoff", 0)):
        cost = client.move_tile_process(process["process"], to, mode)
        assert (cost["to"], cost["mode"]) == (to, mode) and cost["first_ns"] > 0
    assert [(p["tile"], p["moves"]) for p in client.tiles()["processes"]] == [(0, 2)]
    assert len(client.tiles_down()["processes"]) == 1
    with pytest.raises(Refused, match="no tiles are up"):
        client.tiles()
    kinds = [event.kind for event in client.events() if event.kind.startswith("tiles.")]
    assert kinds == ["tiles.up", "tiles.move", "tiles.move", "tiles.down"]


def test_what_is_refused(service: Service, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(code: Code, act: Any, *words: Any) -> None:
        with pytest.raises(WherryError) as caught:
            act(*words)
        assert caught.value.code == code

    refused(Code.NOT_FOUND, client.tiles)
    refused(Code.NOT_FOUND, client.tiles_down)
    refused(Code.NOT_FOUND, client.move_tile_process, 1, 1)
    refused(Code.INVALID_FILE, client.tiles_up, {"tiles": 99}, "FILE")
    refused(Code.INVALID_FILE, client.tiles_up, {"tlies": 1}, "FILE")
    client.wait(client.fabric_up(FABRIC, "FILE").id)
    refused(Code.NOT_FOUND, client.tiles_up, {**TILES, "hosts": ["a9"]}, "FILE")
    refused(Code.NOT_FOUND, client.tiles_up, {**TILES, "rings": [[{"name": "x", "program": "names"}]]}, "FILE")
    fabric = service.context.require_managers().fabric
    monkeypatch.setattr(fabric, "spec", fabric.spec.model_copy(update={"driver": "libvirt"}))
    refused(Code.UNSUPPORTED, client.tiles_up, {**TILES, "hosts": ["a1"]}, "FILE")
    client.tiles_up(TILES, "FILE")
    refused(Code.WRONG_STATE, client.tiles_up, TILES, "FILE")
    refused(Code.NOT_FOUND, client.start_on_tile, "hold", [])
    refused(Code.NOT_FOUND, client.start_on_tile, "/not/there", [])
    refused(Code.INVALID_FILE, client.start_on_tile, "/bin/true", [])
    refused(Code.USAGE, client.start_on_tile, program("hold"), [], 16)
    refused(Code.USAGE, client.start_on_tile, program("hold"), ["tab\there"])
    refused(Code.USAGE, client.start_on_tile, program("hold"), ["x"] * 16)
    refused(Code.NOT_FOUND, client.move_tile_process, 9, 1)
    refused(Code.USAGE, client.move_tile_process, 99, 1)
    refused(Code.USAGE, client.move_tile_process, 1, 1, "teleport")


def test_only_root_changes_them(service: Service, client: Client) -> None:
    client.tiles_up(TILES, "FILE")
    guest = Tiles(service.context, PeerCredentials(4242, 4242, frozenset()))
    assert len(guest.show()["tiles"]) == 3
    for act, words in ((guest.down, ()), (guest.move, (1, 1, "direct")), (guest.start, (Path("/bin/true"), (), None))):
        with pytest.raises(Refused) as caught:
            act(*words)  # type: ignore[operator]
        assert caught.value.code == Code.PERMISSION
