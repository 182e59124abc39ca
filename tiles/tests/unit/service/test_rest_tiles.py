"""Tiles over REST, with the real ones: started, shown, a program on them, moved, ended; refusals, and claims."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rest_service import FABRIC, Service

import waiting
from wherry.base.errors import Code, Refused, WherryError
from wherry.base.paths import native_library
from wherry.client import Client
from wherry.service.credentials import PeerCredentials
from wherry.service.host_commands import HostCommands
from wherry.service.purge import remains
from wherry_tiles.manycore import output, placement
from wherry_tiles.manycore.board import Board
from wherry_tiles.service.auto_balancer import TileAutoBalancer
from wherry_tiles.service.commands import TILES_BALANCED, TileCommands
from wherry_tiles.service.part import TILES_AT, board_of

TILES = {"tiles": 3, "cores": 2}


def program(name: str) -> str:
    return str(native_library("tile") / name)


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.place, start=False) as made:
        yield made
        with suppress(Refused):
            made.tiles_down()


@pytest.fixture
def on_hosts(service: Service, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A tiles file for hosts whose network is this machine's own."""
    fabric = service.context.require_managers().fabric
    monkeypatch.setattr(fabric, "host_netns", lambda host: "")
    monkeypatch.setattr(fabric, "host_address", lambda host: "127.0.0.1")
    return {**TILES, "tiles": 2, "hosts": ["a1", "b1"]}


def refused(code: Code, act: Callable[..., Any], *words: Any) -> WherryError:
    with pytest.raises(WherryError) as caught:
        act(*words)
    assert caught.value.code == code, caught.value
    return caught.value


def test_tiles_are_started_used_and_ended(client: Client) -> None:
    up = client.tiles_up(TILES, "FILE")
    assert [tile["alive"] for tile in up["tiles"]] == [True] * 3 and up["processes"] == [] and up["hosts"] == []
    (started,) = client.start_on_tile(program("receive"), [], 1)
    process = started["process"]
    assert (started["tile"], started["rank"]) == (1, 0)
    for mode, to in (("precopy", 2), ("handoff", 0)):
        cost = client.move_tile_process(process, to, mode)
        assert (cost["to"], cost["mode"]) == (to, mode) and 0 < cost["first_ns"] < cost["seen_ns"]
    assert [(p["tile"], p["moves"]) for p in client.tiles()["processes"]] == [(0, 2)]
    down = client.tiles_down()
    assert len(down["processes"]) == 1 and down["said"] == ""
    with pytest.raises(Refused, match="no tiles are up"):
        client.tiles()
    done = [(operation.kind, operation.target, operation.state) for operation in client.operations()]
    assert done == [
        ("tiles up", "tiles", "done"),
        ("tile run", "receive", "done"),
        ("tile move", f"{process} to 2", "done"),
        ("tile move", f"{process} to 0", "done"),
        ("tiles down", "tiles", "done"),
    ]


def test_what_programs_say_is_followed_to_their_ends(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.tiles_up(TILES, "FILE")
    (one,) = client.start_on_tile(program("count"), ["400", "100000"])
    events = list(client.tile_output([one["process"]]))
    assert "".join(e["text"] for e in events[:-1]).splitlines()[:400] == [str(n) for n in range(1, 401)]
    assert (events[-1]["event"], events[-1]["status"]) == ("ended", 0)
    ranks = client.start_on_tile(program("mpi-check"), ["3"], ranks=3)
    assert [rank["rank"] for rank in ranks] == [0, 1, 2]
    events = list(client.tile_output([rank["process"] for rank in ranks], to_end=True))
    assert "".join(e.get("text", "") for e in events) == "ok, 3 rounds\n"
    assert [e["status"] for e in events if e["event"] == "ended"] == [0, 0, 0]
    (holding,) = client.start_on_tile(program("receive"), [])
    follow, follows = output._events, threading.Event()

    def followed(*words: Any) -> Any:
        follows.set()
        return follow(*words)

    monkeypatch.setattr(output, "_events", followed)
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(list, client.tile_output([holding["process"]]))
        assert follows.wait(60)
        client.tiles_down()
        refused(Code.UNREACHABLE, told.result)


def test_moves_begun_together(client: Client) -> None:
    client.tiles_up({"tiles": 4, "cores": 2}, "FILE")
    processes = [client.start_on_tile(program("receive"), [], 2 * pair)[0]["process"] for pair in range(2)]
    moves = client.move_tile_processes({process: 2 * i + 1 for i, process in enumerate(processes)}, "direct")
    assert sorted(move["to"] for move in moves) == [1, 3]


def test_what_is_refused(service: Service, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(Code.NOT_FOUND, client.tiles)
    refused(Code.NOT_FOUND, client.tiles_down)
    refused(Code.NOT_FOUND, client.move_tile_process, 1, 1)
    refused(Code.NOT_FOUND, client.start_on_tile, program("receive"), [])
    refused(Code.NOT_FOUND, list, client.tile_output([1]))
    refused(Code.INVALID_FILE, client.tiles_up, {"tiles": 99}, "FILE")
    refused(Code.INVALID_FILE, client.tiles_up, {"tlies": 1}, "FILE")
    client.wait(client.fabric_up(FABRIC, "FILE").id)
    refused(Code.NOT_FOUND, client.tiles_up, {**TILES, "hosts": ["a9"]}, "FILE")
    refused(Code.NOT_FOUND, client.tiles_up, {**TILES, "rings": [[{"name": "x", "program": "names"}]]}, "FILE")
    fabric = service.context.require_managers().fabric
    with monkeypatch.context() as real:
        real.setattr(fabric, "spec", fabric.spec.model_copy(update={"driver": "libvirt"}))
        refused(Code.UNSUPPORTED, client.tiles_up, {**TILES, "hosts": ["a1"]}, "FILE")
    client.wait(client.drain("a1").id)
    refused(Code.WRONG_STATE, client.tiles_up, {**TILES, "hosts": ["a1"]}, "FILE")
    client.tiles_up(TILES, "FILE")
    before = len(client.operations())
    refused(Code.WRONG_STATE, client.tiles_up, TILES, "FILE")
    refused(Code.NOT_FOUND, client.start_on_tile, "receive", [])
    refused(Code.NOT_FOUND, client.start_on_tile, "/not/there", [])
    refused(Code.USAGE, client.start_on_tile, program("receive"), [], 16)
    refused(Code.USAGE, client.start_on_tile, program("receive"), ["x"] * 16)
    refused(Code.USAGE, client.start_on_tile, program("receive"), [], 1, 2)
    refused(Code.USAGE, client.move_tile_process, 99, 1)
    refused(Code.USAGE, client.move_tile_process, 1, 1, "teleport")
    refused(Code.USAGE, list, client.tile_output([77]))
    assert len(client.operations()) == before, "a refused request makes no row"
    refused(Code.INVALID_FILE, client.start_on_tile, "/bin/true", [])
    refused(Code.USAGE, client.start_on_tile, program("receive"), ["tab\there"])
    refused(Code.NOT_FOUND, client.move_tile_process, 9, 1)
    refused(Code.NOT_FOUND, list, client.tile_output([9]))


def test_only_root_changes_them(service: Service, client: Client) -> None:
    client.tiles_up(TILES, "FILE")
    guest = TileCommands(service.context, PeerCredentials(4242, 4242, frozenset()))
    assert len(guest.show()["tiles"]) == 3
    refused(Code.PERMISSION, guest.down)
    refused(Code.PERMISSION, guest.move, {1: 1}, "direct")
    refused(Code.PERMISSION, guest.start, Path("/bin/true"), (), None)


def test_two_who_start_tiles_at_once(service: Service) -> None:
    """One of them gets its tiles, the other is refused and takes nothing from it."""

    def up(count: int) -> int | WherryError:
        with Client(service.place, start=False) as own:
            try:
                return len(own.tiles_up({"tiles": count, "cores": 2}, "FILE")["tiles"])
            except WherryError as error:
                return error

    for _ in range(5):
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(up, (2, 3)))
        (made,) = [each for each in found if isinstance(each, int)]
        (error,) = [each for each in found if isinstance(each, WherryError)]
        assert error.code == Code.WRONG_STATE, error
        with Client(service.place, start=False) as client:
            assert len(client.tiles()["tiles"]) == made
            assert client.tiles_down()["said"] == ""


def test_tiles_refused_after_the_claim_change_nothing(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others were started between the check of the request and its claim; their hosts must not be forgotten."""
    store, start = service.context.store, service.context.operations.start

    def late(*words: Any, **claims: Any) -> Any:
        monkeypatch.undo()
        with Client(service.place, start=False) as other:
            other.tiles_up(TILES, "FILE")
        store.put_setting(TILES_AT, '["b1"]')
        return start(*words, **claims)

    monkeypatch.setattr(service.context.operations, "start", late)
    refused(Code.WRONG_STATE, lambda: client.tiles_up(TILES, "FILE", balance=True))
    assert store.setting(TILES_AT) == '["b1"]' and not store.setting(TILES_BALANCED)


def test_an_act_claims_what_it_works_on(service: Service, client: Client) -> None:
    """While the group is being started or ended no program is started and nothing is moved, and one process is moved by
    one."""
    client.tiles_up(TILES, "FILE")
    (process,) = (started["process"] for started in client.start_on_tile(program("receive"), []))
    go = threading.Event()
    hold = service.context.operations.start

    def wait(_task: object) -> None:
        assert go.wait(60)

    try:
        hold("test", "group", wait, exclusive=["tiles"])
        for act, words in (
            (client.tiles_down, ()),
            (client.start_on_tile, (program("receive"), [])),
            (client.move_tile_process, (process, 1)),
        ):
            assert "test group" in refused(Code.WRONG_STATE, act, *words).why
    finally:
        go.set()
    client.wait(client.operations()[-1].id)
    go.clear()
    try:
        hold("test", "process", wait, exclusive=[f"tile process {process}"])
        refused(Code.WRONG_STATE, client.move_tile_process, process, 1)
    finally:
        go.set()
    client.wait(client.operations()[-1].id)
    assert client.move_tile_process(process, 1)["to"] == 1


def test_the_fabric_stays_under_tiles(service: Service, client: Client, on_hosts: dict[str, Any]) -> None:
    assert client.tiles_up(on_hosts, "FILE")["hosts"] == ["a1", "b1"]
    assert [tile["host"] for tile in client.tiles()["tiles"]] == [0, 0, 1, 1]
    error = refused(Code.WRONG_STATE, client.fabric_down)
    assert "a1, b1" in error.why and error.next == "wherry tile down"
    refused(Code.WRONG_STATE, client.fabric_up, {**FABRIC, "name": "other"}, "FILE")
    refused(Code.WRONG_STATE, client.drain, "b1")
    assert not service.context.store.host_flag("b1", "drained"), "a refused request changes nothing"
    assert client.wait(client.drain("a2").id).result
    refused(Code.WRONG_STATE, service.context.fabric_down)
    client.tiles_down()
    client.wait(client.drain("b1").id)
    client.wait(client.fabric_down().id)


def test_tiles_beside_the_fabric_hold_no_host(client: Client) -> None:
    client.tiles_up(TILES, "FILE")
    client.wait(client.drain("a1").id)
    client.wait(client.fabric_down().id)
    assert len(client.tiles()["tiles"]) == 3


def test_tiles_that_died_hold_no_host(service: Service, client: Client, on_hosts: dict[str, Any]) -> None:
    client.tiles_up(on_hosts, "FILE")
    Board(service.place.run / "tiles.sock").down()
    client.wait(client.fabric_down().id)


def test_no_host_is_drained_while_tiles_start_there(
    service: Service, client: Client, on_hosts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the fabric taken down."""
    began, go, up = threading.Event(), threading.Event(), Board.up

    def slowly(*words: Any) -> Any:
        began.set()
        assert go.wait(60)
        return up(*words)

    monkeypatch.setattr(Board, "up", slowly)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(client.tiles_up, on_hosts, "FILE")
        try:
            assert began.wait(60)
            refused(Code.WRONG_STATE, HostCommands(service.context).drain, "a1")
            with Client(service.place, start=False) as other:
                refused(Code.WRONG_STATE, other.fabric_down)
        finally:
            go.set()
        assert made.result()["hosts"] == ["a1", "b1"]


def test_balancing_is_operations(
    service: Service, client: Client, on_hosts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that talk come to one host, by moves with claims; tiles that were not started for that are left alone."""

    def places() -> list[int]:
        rings = [p for p in client.tiles()["processes"] if p["program"] == "ring"]
        return [p["tile"] // 2 for p in rings if p["state"] == "running"]

    def sent() -> int:
        return sum(count for _, _, count in board_of(service.place).loads()["said"])

    def together() -> bool:
        """Whether the ranks are at one host after a look, since whose last one they have talked."""
        before = sent()
        waiting.until(lambda: sent() > before, "messages")
        task.run_once()
        return len(set(places())) == 1

    monkeypatch.setattr(placement, "MESSAGE", 1.0)  # however few messages this machine passes
    task = TileAutoBalancer(service.context)
    for balance in (False, True):
        client.tiles_up(on_hosts, "FILE", balance=balance)
        guard = client.start_on_tile(program("receive"), [], 1)[0]["process"]
        client.start_on_tile(program("ring"), ["1000000", "100"], ranks=2)
        assert places() == [0, 1]
        client.start_on_tile(program("send"), [str(guard), "3", "quit"], 3)
        assert list(client.tile_output([guard]))[-1]["event"] == "ended"
        if balance:
            waiting.until(together, "the ranks at one host")
        else:
            assert not any(together() for _ in range(6))
        moves = [operation for operation in client.operations() if operation.kind == "tile move"]
        assert len(moves) == balance
        client.tiles_down()
        task.run_once()
    assert [event.kind for event in client.events() if event.kind.startswith("tiles.")] == ["tiles.balance"]


def test_they_are_among_what_remains(service: Service, client: Client) -> None:
    assert remains(service.place)["tiles"] == []
    client.tiles_up(TILES, "FILE")
    assert remains(service.place)["tiles"] == ["3 tiles"]
