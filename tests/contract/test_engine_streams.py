"""Encrypted streams: nobody between the hosts reads any of their data, and changed data never is in a node."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal

import pytest
from contract_names import WHOLE_MATRIX
from engine_node import EngineNode, Mode
from pydantic import SecretBytes
from test_engine_faults import _HELLO, kept, node  # noqa: F401 - fixtures
from test_engine_matrix import programs  # noqa: F401 - a fixture

import waiting
from wherry.model.migration_parameters import MigrationParameters
from wherry.node.container.host import Channel, Offer
from wherry.node.container.local_arrival import LocalArrival
from wherry.node.container.local_departure import LocalDeparture
from wherry.node.container.mover import ContainerMover
from wherry.node.netns_socket import connect_from, listen_in

pytestmark = pytest.mark.parametrize("nodes", ["sealed"], indirect=True, scope="module")
MODE = Mode(rounds=1, parameters=MigrationParameters(connections=2))
_BLOCK = 1 << 16
Damage = Callable[[bytes], bytes]


class Wire:
    """The network between the two ends of one connection: sees all, and does `damage` to the first whole block behind
    so many bytes."""

    def __init__(self, netns: str, offer: Offer, behind: int, damage: Damage) -> None:
        self._netns, self._offer, self._behind, self._damage = netns, offer, behind, damage
        self.seen, self.struck = bytearray(), False
        self._listener = listen_in(netns, offer.address, waiting.bound())
        self.offer = dataclasses.replace(offer, port=self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True, name="wire").start()

    def _serve(self) -> None:
        with suppress(OSError), self._listener:
            near, _ = self._listener.accept()
            far = connect_from(self._netns, self._offer.address, self._offer.port, waiting.bound())
            for end in (near, far):
                end.settimeout(None)
            threading.Thread(target=self._pass, args=(far, near, False), daemon=True, name="wire").start()
            far.sendall(near.recv(_HELLO, socket.MSG_WAITALL))  # nothing is warmed up here
            self._pass(near, far, True)

    def _pass(self, source: socket.socket, sink: socket.socket, there: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_BLOCK):
                if there:
                    self.seen += data
                    if not self.struck and len(self.seen) > self._behind and len(data) > 1000:
                        self.struck, data = True, self._damage(data)
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def flipped(data: bytes) -> bytes:
    return data[:500] + bytes([data[500] ^ 8]) + data[501:]


DAMAGES: dict[str, Damage] = {
    "changed": flipped,
    "sent twice": lambda data: data + data,
    "left out": lambda data: b"",
    "in clear": lambda data: bytes(len(data)),
}


CARRIED = (Channel.TREE, Channel.IMAGES, Channel.SUMS)
"""The channels that go through `wherry-tls`."""
NEVER = 1 << 62


@pytest.fixture
def carried() -> dict[Channel, Wire]:
    """The wires of the last move's connections that are not the memory's."""
    return {}


@pytest.fixture
def wires(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, carried: dict[Channel, Wire]
) -> Iterator[list[Wire]]:
    """The wire of each connection of the last move's memory. Damage is done by the second one, or by a channel's."""
    behind, damage, struck = getattr(request, "param", (NEVER, bytes, Channel.MEMORY))
    found, genuine = list[Wire](), LocalArrival.offer

    def offer(arrival: LocalArrival, *channels: Channel, streams: int = 1) -> dict[Channel, Offer]:
        offers = dict(genuine(arrival, *channels, streams=streams))
        assert len({offer.key.get_secret_value() for offer in offers.values()}) == len(offers)
        for channel in CARRIED:
            netns, here = arrival._underlay.netns, behind if channel == struck else NEVER
            carried[channel] = Wire(netns, offers[channel], here, damage)
            offers[channel] = carried[channel].offer
        memory = offers[Channel.MEMORY]
        assert len(memory.key.get_secret_value()) == 32 and not any(one.key.get_secret_value() for one in memory.more)
        found[:] = [
            Wire(arrival._underlay.netns, one, behind if number and struck == Channel.MEMORY else NEVER, damage)
            for number, one in enumerate((memory, *memory.more))
        ]
        first, *more = (wire.offer for wire in found)
        return {**offers, Channel.MEMORY: dataclasses.replace(first, more=tuple(more))}

    monkeypatch.setattr(LocalArrival, "offer", offer)
    yield found


def command_lines(mover: ContainerMover) -> list[bytes]:
    """Of both programs of the memory."""
    departure, arrival = mover._departure, mover._arrival
    assert isinstance(departure, LocalDeparture) and isinstance(arrival, LocalArrival)
    assert departure._memory and arrival._memory
    return [open(f"/proc/{one.pid}/cmdline", "rb").read() for one in (departure._memory, arrival._memory)]


def test_nothing_of_the_memory_is_seen_between_the_hosts(node: EngineNode, wires: list[Wire]) -> None:  # noqa: F811
    lines = list[bytes]()

    def look(step: str, mover: ContainerMover) -> None:
        if step == "round":
            lines.extend(command_lines(mover))

    marker = b"PEER="  # in the environment of each program, which is in its memory
    assert node.attempt(MODE, look) == ""
    assert sum(len(wire.seen) for wire in wires) > 1 << 20
    assert not any(marker in wire.seen or bytes(4000) in wire.seen for wire in wires)
    assert len(lines) == 2 and all(b"--key" in line for line in lines)


@pytest.mark.parametrize("compress", ["on", "off"])
def test_nothing_of_the_files_is_seen_between_the_hosts(
    node: EngineNode,  # noqa: F811
    wires: list[Wire],
    carried: dict[Channel, Wire],
    compress: Literal["on", "off"],
) -> None:
    word = b"a word of a file that nobody may read. "
    file = node.directory(node.node_under_test.source) / "words"
    file.write_bytes(word * 100_000)
    parameters = MigrationParameters(compress=compress)
    assert node.attempt(Mode(rounds=1, parameters=parameters)) == ""
    assert (node.directory(node.node_under_test.source) / "words").read_bytes() == word * 100_000
    for channel, wire in carried.items():
        seen = bytes(wire.seen)
        for plain in (word, b"memory_writer", b"pstree.img", b"ustar", bytes(4000)):
            assert plain not in seen, (channel, plain)
    assert len(carried) == 3 and len(carried[Channel.IMAGES].seen) > 10_000
    assert (len(carried[Channel.TREE].seen) > 3_900_000) == (compress == "off")


CASES = [(behind, name) for behind in ((1, 1 << 20) if WHOLE_MATRIX else (1 << 18,)) for name in DAMAGES]


@pytest.mark.parametrize(
    "wires", [(behind, DAMAGES[name], Channel.MEMORY) for behind, name in CASES], indirect=True, ids=map(str, CASES)
)
def test_what_is_changed_on_the_way_takes_the_move_back(node: EngineNode, wires: list[Wire]) -> None:  # noqa: F811
    before = node.host
    why = node.attempt(MODE)
    assert wires[1].struck and why and re.search("sealed|lost|closed", why), why
    assert node.host == before


FILES = [(channel, name) for channel in (Channel.TREE, Channel.IMAGES) for name in DAMAGES]


@pytest.mark.parametrize(
    "wires", [(1, DAMAGES[name], each) for each, name in FILES], indirect=True, ids=map(str, FILES)
)
def test_files_that_are_changed_on_the_way_take_the_move_back(
    node: EngineNode,  # noqa: F811
    wires: list[Wire],
    carried: dict[Channel, Wire],
) -> None:
    before = node.host
    (node.directory(node.node_under_test.source) / "noise").write_bytes(os.urandom(1 << 20))
    why = node.attempt(MODE)
    assert any(wire.struck for wire in carried.values())
    assert why and node.host == before
    assert "data was changed, left out or repeated on its way" in why, why


def test_a_wrong_key_takes_the_move_back(node: EngineNode, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    genuine = LocalArrival.offer

    def offer(arrival: LocalArrival, *channels: Channel, streams: int = 1) -> dict[Channel, Offer]:
        offers = dict(genuine(arrival, *channels, streams=streams))
        wrong = dataclasses.replace(offers[Channel.MEMORY], key=SecretBytes(os.urandom(32)))
        return {**offers, Channel.MEMORY: wrong}

    monkeypatch.setattr(LocalArrival, "offer", offer)
    before = node.host
    why = node.attempt(MODE)
    assert "sealed" in why or "lost" in why, why
    assert node.host == before
    monkeypatch.undo()
    assert node.attempt(MODE) == ""
