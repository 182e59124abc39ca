"""Calls over a stream: results, errors, callbacks, cancellation, objects, and the end of the stream."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from wherry.agent.server import Objects, Server
from wherry.base.errors import Bug, Code, Failed, LostContact, Refused, WherryError
from wherry.hostlink import link as link_module
from wherry.hostlink.frames import Malformed, Splitter
from wherry.hostlink.interface import Interface
from wherry.hostlink.link import HostLink
from wherry.hostlink.remote import remote
from wherry.node.protocol import ProgramEnded

Look = Callable[[str], bool]
Check = Callable[[], None]


class Half(Protocol):
    def add(self, number: int) -> int: ...

    def close(self) -> None: ...


class Desk(Protocol):
    def double(self, number: int) -> int: ...

    def fails(self, kind: str) -> None: ...

    def steps(self, look: Look, count: int) -> int: ...

    def waits(self, check: Check) -> None: ...

    def half(self, begin: int) -> Half: ...


class RealHalf:
    def __init__(self, begin: int) -> None:
        self.sum = begin

    def add(self, number: int) -> int:
        self.sum += number
        return self.sum

    def close(self) -> None:
        self.sum = 0


class RealDesk:
    def __init__(self) -> None:
        self.seen = list[bool]()
        self.cancelled = threading.Event()

    def double(self, number: int) -> int:
        return 2 * number

    def fails(self, kind: str) -> None:
        if kind == "OSError":
            raise OSError(28, "No space left on device")
        errors: dict[str, WherryError] = {
            "Refused": Refused(Code.NO_CAPACITY, "no room", "it is full", "wherry status"),
            "Failed": Failed(Code.NOT_FOUND, "gone", "since noon", "ls"),
            "ProgramEnded": ProgramEnded(Code.MOVE_FAILED, "tar ended", "killed", "again"),
            "LostContact": LostContact(Code.UNREACHABLE, "silent", "a cut", "ping"),
            "Bug": Bug("impossible", "it happened"),
        }
        raise errors[kind]

    def steps(self, look: Look, count: int) -> int:
        try:
            for number in range(count):
                self.seen.append(look(f"step {number}"))
                time.sleep(0.01)
        except WherryError:
            self.cancelled.set()
            raise
        return count

    def waits(self, check: Check) -> None:
        try:
            while True:
                check()
                time.sleep(0.005)
        except WherryError:
            self.cancelled.set()
            raise

    def half(self, begin: int) -> RealHalf:
        return RealHalf(begin)


class World:
    """A host in this process: each connection has an agent of its own."""

    def __init__(self) -> None:
        self.lost, self.desk = set[str](), RealDesk()
        self.objects = Objects()
        self.opened = list[HostLink]()
        self.feeds = list[int]()

    def link(self, host: str) -> HostLink:
        if not self.opened or not self.opened[-1].alive:
            self.opened.append(self._open(host))
        return self.opened[-1]

    def _open(self, host: str) -> HostLink:
        (reads, answers), (requests, writes) = os.pipe(), os.pipe()
        self.objects = {"desk": (Interface(Desk), self.desk)}
        writing, ended = threading.Lock(), list[bool]()

        def write(frame: bytes) -> None:
            with writing:
                if ended:
                    raise OSError("the agent has ended")
                _write(answers, frame)

        server = Server(self.objects, write)

        def serve() -> None:
            try:
                server.serve(requests)
            except (Malformed, OSError):  # nobody reads its answer to a ping any more
                pass
            finally:
                with writing:
                    ended.append(True)
                    os.close(answers)
                os.close(requests)

        threading.Thread(target=serve, daemon=True).start()
        self.feeds.append(answers)
        return HostLink(host, reads, writes, kinds=(ProgramEnded,))

    @property
    def remote(self) -> Desk:
        return remote(self, "h1", "desk", Desk, {"double": 7, "close": None}, frozenset(("close",)))


def _write(descriptor: int, frame: bytes) -> None:
    while frame:
        frame = frame[os.write(descriptor, frame) :]


@pytest.fixture
def world() -> Iterator[World]:
    created = World()
    yield created
    for link in created.opened:
        link.close()


def test_result_comes_back(world: World) -> None:
    assert world.remote.double(21) == 42


def test_many_calls_at_the_same_time(world: World) -> None:
    results = dict[int, int]()
    threads = [threading.Thread(target=lambda n=n: results.update({n: world.remote.double(n)})) for n in range(50)]
    world.link("h1")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == {n: 2 * n for n in range(50)}


@pytest.mark.parametrize("kind", [Refused, Failed, ProgramEnded, LostContact])
def test_error_is_the_same_here(world: World, kind: type[WherryError]) -> None:
    with pytest.raises(WherryError) as there:
        world.desk.fails(kind.__name__)
    with pytest.raises(kind) as here:
        world.remote.fails(kind.__name__)
    assert type(here.value) is kind and here.value.to_dict() == there.value.to_dict()


def test_bug_and_unexpected_errors_are_told(world: World) -> None:
    with pytest.raises(Bug, match="impossible: it happened"):
        world.remote.fails("Bug")
    with pytest.raises(Failed, match="No space left on device"):
        world.remote.fails("OSError")


def test_steps_call_back_and_hear_of_progress(world: World) -> None:
    looked = list[str]()

    def look(text: str) -> bool:
        looked.append(text)
        return len(looked) > 5

    assert world.remote.steps(look, 20) == 20
    assert looked == [f"step {number}" for number in range(20)]
    assert not any(world.desk.seen[:6]) and any(world.desk.seen[6:])


def test_error_of_a_callback_ends_the_step_there(world: World) -> None:
    def look(_text: str) -> bool:
        raise Failed(Code.CANCELLED, "the user changed his mind")

    with pytest.raises(Failed, match="changed his mind"):
        world.remote.steps(look, 100_000)
    assert world.desk.cancelled.is_set()


def test_check_is_asked_while_a_call_waits(world: World) -> None:
    until = time.monotonic() + 0.2

    def check() -> None:
        if time.monotonic() > until:
            raise Failed(Code.CANCELLED, "enough")

    with pytest.raises(Failed, match="enough"):
        world.remote.waits(check)
    assert world.desk.cancelled.is_set()


def test_object_that_a_call_made_is_called(world: World) -> None:
    half = world.remote.half(10)
    assert [half.add(1), half.add(2)] == [11, 13]
    assert len(world.objects) == 2
    half.close()
    assert len(world.objects) == 1


def test_object_ends_with_its_connection_and_is_made_anew_only_for_what_needs_no_earlier_step(world: World) -> None:
    half = world.remote.half(10)
    half.add(5)
    world.opened[-1].close()
    with pytest.raises(LostContact, match="has ended with its agent"):
        half.add(1)
    half.close()
    assert len(world.opened) == 2 and len(world.objects) == 1


def test_end_of_the_stream_is_lost_contact_for_every_call(world: World) -> None:
    errors, link = list[LostContact](), world.link("h1")

    def wait() -> None:
        try:
            world.remote.steps(lambda _: True, 100_000)
        except LostContact as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    link.close()
    for thread in threads:
        thread.join(10)
    assert len(errors) == 3 and {error.code for error in errors} == {Code.UNREACHABLE}
    assert "host h1 does not answer" in str(errors[0])


def test_silent_agent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_ASK", 0.05)
    monkeypatch.setattr(link_module, "_STARTS", 0.2)
    (reads, answers), (requests, writes) = os.pipe(), os.pipe()
    killed, link = list[bool](), HostLink("h1", reads, writes, kill=lambda: killed.append(True))
    method = Interface(Desk).method("double")
    with pytest.raises(LostContact, match="silent for"):
        link.call("desk", method, method.encode((1,), {}))
    assert killed and not link.alive
    assert b"ping" in os.read(requests, 1000)
    os.close(answers)
    os.close(requests)


def test_idle_agent_is_not_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_ASK", 0.05)
    monkeypatch.setattr(link_module, "_SILENT", 0.2)
    link = world.link("h1")
    time.sleep(0.6)
    assert link.alive and world.remote.double(1) == 2 and len(world.opened) == 1


def test_malformed_answer_ends_the_stream(world: World) -> None:
    link = world.link("h1")
    os.write(world.feeds[-1], b"\xff\xff\xff\xff")
    deadline = time.monotonic() + 10
    while link.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not link.alive
    assert world.remote.double(3) == 6


def test_needless_calls_of_a_lost_host_do_nothing(world: World) -> None:
    world.lost.add("h1")
    half = world.remote.half(1)
    half.close()
    assert world.remote.double(1) == 7 and not world.opened


@pytest.mark.parametrize(
    "message",
    [
        {"id": 1, "on": "desk", "do": "no_such", "with": {}},
        {"id": 1, "on": "nobody", "do": "double", "with": {"number": 1}},
        {"id": 1, "on": ["desk"], "do": "double", "with": {"number": 1}},
        {"id": 1, "on": "desk", "do": "__init__", "with": {}},
        {"id": 1, "on": "desk", "do": 5, "with": {}},
        {"id": 1, "on": "desk", "do": "double", "with": {"number": "1"}},
        {"id": 1, "on": "desk", "do": "double"},
    ],
)
def test_call_that_is_none_is_refused(message: dict[str, object]) -> None:
    sent, ready = list[bytes](), threading.Event()

    def write(frame: bytes) -> None:
        sent.append(frame)
        ready.set()

    Server({"desk": (Interface(Desk), RealDesk())}, write).receive(message)
    assert ready.wait(10) and b'"BUG"' in sent[0]


@pytest.mark.parametrize("message", [{}, {"id": "1"}, {"id": True, "do": "double"}, {"do": "double"}])
def test_message_that_is_none_ends_the_agent(message: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        Server({}, lambda _: None).receive(message)


def test_ping_is_answered_at_once() -> None:
    sent = list[bytes]()
    Server({}, sent.append).receive({"ping": 0})
    (pong,) = Splitter().feed(sent[0])
    assert pong.keys() == {"pong"} and pong["pong"] > 0
