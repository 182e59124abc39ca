"""How a container's memory crosses the network: over how many connections, and whether it is compressed."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import cast

import pytest
from pydantic import SecretBytes
from recordinghosts import World, place

import waiting
from wherry.cli.move import summary
from wherry.client import Row
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.records import Carriage, Move, Phase
from wherry.move.forecast import forecast
from wherry.node.container import rate_limit
from wherry.node.container.carriage import MAX_CONNECTIONS, connections
from wherry.node.container.driver import ContainerDriver
from wherry.node.container.host import Channel, ContainerHosts
from wherry.node.container.rate_limit import RateLimit
from wherry.node.container.streams import SenderGroup
from wherry.node.protocol import Measured
from wherry.node.vm.migration_job import parameters_obstacle


@pytest.mark.parametrize(
    ("wanted", "rate", "processors", "expected"),
    [
        *((3, None, 2, 3), (3, 1e8, 64, 3), (64, None, 2, MAX_CONNECTIONS)),
        *((0, 1e9, 64, 1), (0, 4e9, 64, 1), (0, 9e9, 64, 4), (0, None, 64, 4)),
        *((0, None, 2, 1), (0, None, 1, 1), (0, None, 5, 2)),
    ],
)
def test_as_many_connections_as_pay(wanted: int, rate: float | None, processors: int, expected: int) -> None:
    assert connections(wanted, rate, processors) == expected


@pytest.mark.parametrize(
    ("word", "rate", "expected"),
    [
        *(("auto", None, False), ("auto", 1e9, True), ("auto", 9e8, True), ("auto", 2e9, False)),
        *(("on", None, True), ("on", 40e9, True), ("off", 1e6, False)),
    ],
)
def test_auto_compresses_for_slow_paths_only(word: str, rate: float | None, expected: bool) -> None:
    assert MigrationParameters.model_validate({"compress": word}).compresses(rate) is expected


def test_a_container_takes_no_more_connections_than_its_memory_can_go_over() -> None:
    driver = ContainerDriver(cast(ContainerHosts, None))
    assert driver.parameters_obstacle(MigrationParameters(connections=MAX_CONNECTIONS, compress="on")) == ""
    assert "at most 16" in driver.parameters_obstacle(MigrationParameters(connections=MAX_CONNECTIONS + 1))


@pytest.fixture
def ends() -> Iterator[list[socket.socket]]:
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as server:
        near = list[socket.socket]()
        for _ in range(4):
            near.append(stack.enter_context(socket.create_connection(server.getsockname())))
            stack.enter_context(server.accept()[0])
        yield near


def rate_of(end: socket.socket) -> float:
    """Bit/s to which the kernel limits a connection (SO_MAX_PACING_RATE)."""
    return 8.0 * int(struct.unpack("=Q", end.getsockopt(socket.SOL_SOCKET, 47, 8))[0])


def test_the_rate_of_a_move_holds_for_all_connections_together(ends: list[socket.socket]) -> None:
    memory, tree, limit = SenderGroup("memory", ends[:3]), SenderGroup("tree", ends[3:]), RateLimit(900e6)
    with limit.sending(memory):
        assert [rate_of(end) for end in ends[:3]] == pytest.approx([300e6] * 3, rel=1e-6)
        with limit.sending(tree):
            assert [rate_of(end) for end in ends] == pytest.approx([150e6] * 3 + [450e6], rel=1e-6)
        assert sum(map(rate_of, ends[:3])) == pytest.approx(900e6, rel=1e-6)
        memory.limit_first(900e6)
        assert rate_of(ends[0]) == pytest.approx(900e6, rel=1e-6)


def test_what_went_over_several_connections_is_one_figure(ends: list[socket.socket]) -> None:
    group = SenderGroup("memory", ends)
    moved = group.traffic()
    moved()
    for end in ends[1:3]:
        end.sendall(bytes(1000))
    assert group.sent() == 2000 and group.round_trip() >= 0
    group.close()
    assert not moved()


@pytest.mark.parametrize(
    ("parameters", "rate", "expected"),
    [
        ({"connections": 3, "compress": "off"}, 1e9, Carriage(connections=3)),
        ({"connections": 1}, 1e9, Carriage(connections=1, compressed=True)),
        ({"connections": 2, "compress": "on"}, None, Carriage(connections=2, compressed=True)),
    ],
)
@pytest.mark.parametrize("key", [b"", bytes(32)])
def test_how_the_memory_goes_is_told_to_both_hosts_and_recorded(
    parameters: dict[str, object], rate: float | None, expected: Carriage, key: bytes
) -> None:
    world = World()
    world.key = SecretBytes(key)
    mover = ContainerDriver(world).mover(place("a"), place("b"), MigrationParameters.model_validate(parameters))
    mover.limit_rate(rate)
    mover.prepare()
    assert world.compressed == expected.compressed
    assert len(world.offered[Channel.MEMORY].more) == expected.connections - 1
    mover.freeze()
    assert mover.transfer().carriage == expected.model_copy(update={"encrypted": bool(key)})


def test_without_the_pager_nothing_is_compressed() -> None:
    world = World()
    world.pager_obstacle = "it is switched off"
    mover = ContainerDriver(world).mover(place("a"), place("b"), MigrationParameters(connections=3))
    mover.limit_rate(1e9)
    mover.prepare()
    assert not world.compressed and Channel.MEMORY not in world.offered
    mover.freeze()
    assert mover.transfer().carriage is None


def test_the_command_tells_how_the_memory_went() -> None:
    plain = Move(
        id="mv-1", node="c-0", cluster="c", source="a", destination="b", phase=Phase.DONE, created=1.0, bytes=1 << 20
    )
    assert "1.0 MiB sent, 0 rounds" in summary(plain)
    carried = plain.model_copy(update={"carriage": Carriage(connections=3, compressed=True, encrypted=True)})
    for move in (carried, Row(carried.model_dump(mode="json"))):
        assert "1.0 MiB sent, compressed, encrypted, over 3 connections, 0 rounds" in summary(move)


def test_the_forecast_says_that_it_leaves_compression_out() -> None:
    measured = Measured(bytes=1 << 28, overhead=0.1, engine="pager")
    slow, fast, refused = (
        forecast(measured, True, [], rate, MigrationParameters.model_validate({"compress": word})).basis
        for rate, word in ((1e9, "auto"), (None, "auto"), (1e9, "off"))
    )
    assert "compression" in slow and "compression" not in fast + refused


def test_virtual_machines_are_compressed_by_an_option_of_their_own() -> None:
    assert "--zstd" in parameters_obstacle(MigrationParameters(compress="on"), lambda: 9_004_000)
    assert parameters_obstacle(MigrationParameters(compress="off"), lambda: 9_004_000) == ""


# The rate of a move: its budget, and the link's spare rate beside it while no queue grows.


class Sending:
    """A connection: its rate limit, and the queue on its way in seconds."""

    rate, queue, closed = 0.0, 0.0, False

    def limit_rate(self, rate: float) -> None:
        if self.closed:
            raise OSError("closed")
        self.rate = rate

    def round_trip(self) -> float:
        if self.closed:
            raise OSError("closed")
        return 0.01 + self.queue


def watches() -> int:
    return sum(thread.name == "link-queue" for thread in threading.enumerate())


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> RateLimit:
    monkeypatch.setattr(rate_limit, "_POLL_INTERVAL", 0.001)
    return RateLimit(90e6, 4e6)


def test_a_move_takes_what_a_link_has_left_until_a_queue_grows(limit: RateLimit) -> None:
    one, other = Sending(), Sending()
    with limit.sending(one):
        waiting.until(lambda: one.rate == 94e6, "all of the link")
        with limit.sending(other):
            waiting.until(lambda: one.rate == other.rate == 47e6, "half of it")
            other.queue = 0.0025
            waiting.until(lambda: one.rate == other.rate == 45e6, "half of the budget")
            other.queue = 0.0015
            waiting.until(lambda: one.rate == other.rate == 47e6, "half of it")
        assert other.rate == 90e6, "buffered data keeps to the budget"
    assert one.rate == 90e6
    waiting.until(lambda: watches() == 0, "the end of the watch")


def test_a_connection_that_was_closed_ends_the_watch_alone(limit: RateLimit) -> None:
    one, other = Sending(), Sending()
    with limit.sending(one), limit.sending(other):
        waiting.until(lambda: one.rate == other.rate == 47e6, "half of it")
        one.closed = True
        waiting.until(lambda: watches() == 0, "the end of the watch")
        assert other.rate == 45e6, "the others keep to the budget"


def test_a_rate_that_was_asked_for_is_kept() -> None:
    one = Sending()
    with RateLimit(90e6).sending(one):
        assert one.rate == 90e6 and watches() == 0
