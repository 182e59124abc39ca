"""Whatever breaks at whichever step of a container's move: one copy runs afterwards, and everything in it is right.

A cell is a fault at the end of a step; whether the move is rolled back or continues is the engine's affair. After the
commit a node whose memory can no longer arrive is lost, and nothing of it is left. `make test-engine` takes all cells;
faults under a job and of the daemon: tests/system/test_faults.py, test_recovery.py.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

import pytest
from contract_names import WHOLE_MATRIX
from engine_node import STEPS, TELLING, EngineNode, Mode, engine_node
from test_engine_matrix import programs  # noqa: F401 - a fixture

import waiting
from wherry.base.errors import Failed
from wherry.fabric.protocol import Fabric
from wherry.model.migration_parameters import MigrationParameters
from wherry.node.container.host import Channel, Offer
from wherry.node.container.local_arrival import LocalArrival
from wherry.node.container.local_departure import LocalDeparture
from wherry.node.container.mover import ContainerMover
from wherry.node.netns_socket import connect_from, listen_in
from wherry.node.protocol import NodeDriver

pytestmark = pytest.mark.parametrize("nodes", ["container"], indirect=True, scope="module")
MODE = Mode(rounds=2)
SEVERAL = Mode(rounds=2, parameters=MigrationParameters(connections=3))
HELPERS = ("send", "receive", "guard", "tree send", "tree", "images", "digest", "restore", "compare")
CHOSEN = (
    *(("send", step) for step in ("round", "freeze")),
    *(("receive", step) for step in STEPS[1:]),
    *(("guard", "transfer"), ("images", "freeze"), ("digest", "freeze"), ("restore", "transfer")),
    *(("tree send", "round"), ("tree", "freeze"), ("files full", "prepare")),
    *(("compare", "transfer"), ("memory full", "round"), ("images full", "transfer")),
)
"""The most telling cells; the others are in the whole matrix."""
CELLS = [
    *((what, step) for what in (*HELPERS, "images full", "link cut") for step in STEPS),
    *(("files full", step) for step in STEPS[:3]),
    *(("memory full", step) for step in STEPS[:-1]),  # later it has all memory that it needs
]
_HELLO = 40
"""Bytes of the secret and of the size of dummy data (warm_connections)."""
_HEADER = struct.Struct(">IIQIIII")
Damage = Callable[[bytes], bytes | None]


class Kept:
    """One node for all cells, and another one when a cell has broken it."""

    def __init__(self, make: Callable[[], AbstractContextManager[EngineNode]]) -> None:
        self._make, self._stack = make, ExitStack()
        self._node: EngineNode | None = None

    def node(self) -> EngineNode:
        if self._node is None:
            self._node = self._stack.enter_context(self._make())
            self._node.begin(*TELLING)
        return self._node

    def drop(self) -> None:
        self._node = None
        self._stack.close()


@pytest.fixture(scope="module")
def kept(nodes: tuple[NodeDriver, Fabric], programs: tuple[Path, Path]) -> Iterator[Kept]:  # noqa: F811
    made = Kept(lambda: engine_node(*nodes, *programs))
    yield made
    made.drop()


@pytest.fixture
def node(kept: Kept) -> Iterator[EngineNode]:
    """At the end everything in it must still be right."""
    made = kept.node()
    made.aim("b1" if made.host == "a1" else "a1")
    try:
        yield made
        made.mend()
        made.await_laps(*TELLING)
    except BaseException:
        kept.drop()
        raise


def guard_of(receive: int) -> int:
    """The guard of a receiver, which is its child."""
    children = Path(f"/proc/{receive}/task/{receive}/children").read_text().split()
    return int(children[0]) if children else 0


def processes(mover: ContainerMover) -> dict[str, int]:
    """PIDs of the programs of a move that there are at this step."""
    departure, arrival = mover._departure, mover._arrival
    assert isinstance(departure, LocalDeparture) and isinstance(arrival, LocalArrival)
    ours = {"send": departure._memory, "compare": departure._comparison, "receive": arrival._memory}
    ours |= {"tree send": next(iter(departure._files), None), "tree": next(iter(arrival._files), None)}
    found = {name: program.pid for name, program in ours.items() if program}
    found |= {str(channel): receiver.pid for channel, receiver in arrival._receivers.items()}
    if arrival._sums:
        found["digest"] = arrival._sums.pid
    if arrival._engine and arrival._engine.worker:
        found["restore"] = arrival._engine.worker._process.pid
    return found


def kill_helper(what: str, mover: ContainerMover) -> None:
    """Kills a program of the move, if it still runs."""
    found = processes(mover)
    with suppress(OSError):
        receive = found["receive"]
        pid, parent = (guard_of(receive), receive) if what == "guard" else (found.get(what, 0), os.getpid())
        if pid and f"PPid:\t{parent}\n" in Path(f"/proc/{pid}/status").read_text():
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # ended, when it is our child


def strike(node: EngineNode, what: str, mover: ContainerMover) -> None:
    destination = node.node_under_test.destination.host
    if what == "memory full":
        node.starve(destination)
    elif what == "images full":
        node.fill(destination)
    elif what == "files full":
        node.fill_files(destination)
    elif what == "link cut":
        node.link(destination, "down")
    else:
        kill_helper(what, mover)


@pytest.mark.parametrize(("what", "when"), CELLS if WHOLE_MATRIX else CHOSEN)
def test_whatever_breaks_one_copy_is_right(node: EngineNode, what: str, when: str) -> None:
    def break_it(step: str, mover: ContainerMover) -> None:
        if step == when:
            strike(node, what, mover)

    before = node.host
    why = node.attempt(MODE, break_it)
    print(f"{what} after {when}: {why or 'moved'}")
    assert (node.host == before) == bool(why)
    if what == "memory full" and why:
        assert re.search(r"host \w+ ran out of memory: the move of \S+ had taken .* of up to 384.0 MiB", why), why
    node.mend()
    node.await_laps(*TELLING)
    if why:  # nothing is in the way of the next one
        assert node.attempt(MODE) == ""


def test_after_the_restore_nothing_depends_on_the_link(node: EngineNode) -> None:
    """All memory is at the destination: only programs that communicate with others wait for the network."""
    alone = tuple(case for case in TELLING if case != "busy_tcp")
    destination = node.node_under_test.destination.host

    def cut(step: str, _mover: ContainerMover) -> None:
        if step == "restore":
            node.link(destination, "down")

    assert node.attempt(MODE, cut) == ""
    node.await_laps(*alone)
    node.mend()


class Proxy:
    """Between the two ends of the pager: passes frames on, and has `damage` say what to send for one of them.

    That is the first frame of a `kind` after as many ends of rounds; None instead of a frame closes the connection.
    """

    def __init__(self, netns: str, offer: Offer, kind: str, rounds: int, damage: Damage) -> None:
        self._kind, self._rounds, self._damage, self.struck = kind, rounds, damage, False
        self._netns, self._offer = netns, offer
        self._listener = listen_in(netns, offer.address, waiting.bound())
        self.offer = dataclasses.replace(offer, port=self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True, name="proxy").start()

    def _serve(self) -> None:
        with suppress(OSError, struct.error), self._listener:
            near, _ = self._listener.accept()
            far = connect_from(self._netns, self._offer.address, self._offer.port, waiting.bound())
            for end in (near, far):
                end.settimeout(None)
            threading.Thread(target=self._back, args=(far, near), daemon=True, name="proxy").start()
            try:
                with near.makefile("rb") as stream:
                    hello = stream.read(_HELLO)
                    far.sendall(hello + stream.read(int.from_bytes(hello[32:], "big")))
                    while header := stream.read(_HEADER.size):
                        far.sendall(self._passed(header + stream.read(_HEADER.unpack(header)[4])))
            finally:
                for end in (near, far):
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)

    def _passed(self, frame: bytes) -> bytes:
        kind = chr(frame[3])
        if self.struck or self._rounds or kind not in self._kind:
            self._rounds = max(0, self._rounds - (kind == "R"))
            return frame
        self.struck = True
        damaged = self._damage(frame)
        if damaged is None:
            raise ConnectionError
        return damaged

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(1 << 12):
                near.sendall(data)
        with suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)


def flipped(byte: int, bit: int) -> Damage:
    """A bit of a frame changes."""

    def flip(frame: bytes) -> bytes:
        changed = bytearray(frame)
        changed[byte] ^= 1 << bit
        return bytes(changed)

    return flip


DAMAGES: dict[str, tuple[str, Damage]] = {
    "a byte of a page": ("D", flipped(_HEADER.size + 1000, 3)),
    "the address of a page": ("D", flipped(14, 4)),
    "the process of a page": ("D", flipped(7, 0)),
    "a frame twice": ("D", lambda frame: frame + frame),
    "a frame left out": ("D", lambda frame: b""),
    "a connection cut": ("D", lambda frame: None),
    "another round": ("RL", flipped(15, 1)),
}


@pytest.mark.parametrize("rounds", [0, 1, 2] if WHOLE_MATRIX else [1])
@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_stream_is_never_taken_for_memory(
    node: EngineNode, monkeypatch: pytest.MonkeyPatch, what: str, rounds: int
) -> None:
    kind, damage = DAMAGES[what]
    proxies = list[Proxy]()
    genuine = LocalArrival.offer

    def offer(arrival: LocalArrival, *channels: Channel, streams: int = 1) -> dict[Channel, Offer]:
        offers = dict(genuine(arrival, *channels, streams=streams))
        proxies.append(Proxy(arrival._underlay.netns, offers[Channel.MEMORY], kind, rounds, damage))
        return {**offers, Channel.MEMORY: proxies[-1].offer}

    monkeypatch.setattr(LocalArrival, "offer", offer)
    before = node.host
    why = node.attempt(MODE)
    assert proxies[-1].struck, f"no frame {kind} came"
    assert why and re.search("checksum|sequence|no such frame|not the round|closed|lost|memory", why), why
    assert node.host == before


@pytest.mark.parametrize("rounds", [0, 1, 2] if WHOLE_MATRIX else [1])
@pytest.mark.parametrize("which", [0, 1, 2] if WHOLE_MATRIX else [2])
def test_the_loss_of_one_connection_among_several_ends_the_move(
    node: EngineNode, monkeypatch: pytest.MonkeyPatch, which: int, rounds: int
) -> None:
    proxies = list[Proxy]()
    genuine = LocalArrival.offer

    def offer(arrival: LocalArrival, *channels: Channel, streams: int = 1) -> dict[Channel, Offer]:
        offers = dict(genuine(arrival, *channels, streams=streams))
        memory = offers[Channel.MEMORY]
        all_ = [memory, *memory.more]
        proxies.append(Proxy(arrival._underlay.netns, all_[which], "DRL", rounds, lambda frame: None))
        all_[which] = proxies[-1].offer
        return {**offers, Channel.MEMORY: dataclasses.replace(all_[0], more=tuple(all_[1:]))}

    monkeypatch.setattr(LocalArrival, "offer", offer)
    before = node.host
    why = node.attempt(SEVERAL)
    assert proxies[-1].struck and why and re.search("lost|closed|memory", why), why
    assert node.host == before


def test_strangers_without_the_token_are_sent_away(node: EngineNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come first, to every connection of the move."""
    genuine, strangers = LocalArrival.offer, list[socket.socket]()

    def offer(arrival: LocalArrival, *channels: Channel, streams: int = 1) -> dict[Channel, Offer]:
        offers = dict(genuine(arrival, *channels, streams=streams))
        for each in (one for offer in offers.values() for one in (offer, *offer.more)):
            strangers.append(connect_from(arrival._underlay.netns, each.address, each.port, waiting.bound()))
            strangers[-1].sendall(os.urandom(_HELLO - 8) + bytes(8))
        return offers

    monkeypatch.setattr(LocalArrival, "offer", offer)
    assert node.attempt(SEVERAL) == ""
    assert len(strangers) >= 6 and [stranger.recv(1) for stranger in strangers] == [b""] * len(strangers)
    for stranger in strangers:
        stranger.close()


def test_a_node_whose_memory_cannot_arrive_is_lost_and_nothing_is_left(
    kept: Kept,
    nodes: tuple[NodeDriver, Fabric],
    programs: tuple[Path, Path],  # noqa: F811
) -> None:
    """Between the commit and the thaw the program dies that has the node's memory: no process runs on without it."""
    kept.drop()
    with engine_node(*nodes, *programs) as node:
        node.begin(*TELLING)
        under_test = node.node_under_test
        mover = under_test.mover()
        assert isinstance(mover, ContainerMover)
        for step in under_test.steps(mover):
            step()
        pid = processes(mover)["receive"]
        assert not mover.problem()
        mover.release()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Failed, match="ended before it had all its memory"):
            under_test.finish(mover)
        assert not under_test.driver.alive(under_test.destination)
        under_test.driver.stop(under_test.destination)
        with suppress(Failed):
            mover.close()
        node.assert_one_copy(None)
