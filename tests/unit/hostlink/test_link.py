"""Calls over a stream: results, errors, callbacks, cancellation, objects, and the end of the stream."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from fakeclock import Clock

import waiting
from wherry.agent.server import Objects, Server
from wherry.base.errors import Bug, Code, Failed, LostContact, Refused, WherryError
from wherry.hostlink import link as link_module
from wherry.hostlink.frames import Malformed, Splitter
from wherry.hostlink.interface import Interface
from wherry.hostlink.link import HostLink
from wherry.hostlink.remote import remote
from wherry.node.protocol import ProgramEnded

StepMonitor = Callable[[str], bool]
Check = Callable[[], None]


class Half(Protocol):
    def add(self, number: int) -> int: ...

    def close(self) -> None: ...


class Desk(Protocol):
    def double(self, number: int) -> int: ...

    def fails(self, kind: str) -> None: ...

    def steps(self, monitor: StepMonitor) -> int: ...

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

    def steps(self, monitor: StepMonitor) -> int:
        """Makes steps until the caller has seen progress; how many."""

        def step() -> bool:
            self.seen.append(monitor(f"step {len(self.seen)}"))
            return self.seen[-1]

        try:
            waiting.until(step, "that the caller sees progress")
        except WherryError:
            self.cancelled.set()
            raise
        return len(self.seen)

    def waits(self, check: Check) -> None:
        try:
            waiting.until(check, "the end of the wait")
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
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all connections, which look often."""
    made = Clock()
    monkeypatch.setattr(link_module, "time", made)
    monkeypatch.setattr(link_module, "_ASK", 0.001)
    return made


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

    def double(number: int) -> None:
        results[number] = world.remote.double(number)

    threads = [threading.Thread(target=double, args=(number,), daemon=True) for number in range(50)]
    world.link("h1")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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

    def monitor(text: str) -> bool:
        looked.append(text)
        return len(looked) > 5

    assert world.remote.steps(monitor) == len(looked)
    assert looked == [f"step {number}" for number in range(len(looked))]
    assert len(looked) > 6 and world.desk.seen == [False] * (len(looked) - 1) + [True]


def test_error_of_a_callback_ends_the_step_there(world: World) -> None:
    def monitor(_text: str) -> bool:
        raise Failed(Code.CANCELLED, "the user changed his mind")

    with pytest.raises(Failed, match="changed his mind"):
        world.remote.steps(monitor)
    assert world.desk.cancelled.is_set()


def test_check_is_asked_while_a_call_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_CHECK", 0.001)
    asked = list[bool]()

    def check() -> None:
        asked.append(True)
        if len(asked) == 5:
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
    errors, looking, link = list[LostContact](), set[int](), world.link("h1")

    def monitor(_text: str) -> bool:
        looking.add(threading.get_ident())
        return False

    def wait() -> None:
        try:
            world.remote.steps(monitor)
        except LostContact as error:
            errors.append(error)

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    waiting.until(lambda: len(looking) == 3, "the calls")
    link.close()
    for thread in threads:
        thread.join()
    assert len(errors) == 3 and {error.code for error in errors} == {Code.UNREACHABLE}
    assert "host h1 does not answer" in str(errors[0])


def test_silent_agent_is_lost(clock: Clock) -> None:
    (reads, answers), (requests, writes) = os.pipe(), os.pipe()
    killed, link = list[bool](), HostLink("h1", reads, writes, kill=lambda: killed.append(True))

    def agent() -> None:
        heard = b""
        while b"ping" not in heard or b"double" not in heard:
            heard += os.read(requests, 1000)
        clock.sleep(3600)

    silent = threading.Thread(target=agent, daemon=True)
    silent.start()
    method = Interface(Desk).method("double")
    with pytest.raises(LostContact, match="silent for"):
        link.call("desk", method, method.encode((1,), {}))
    silent.join()
    assert killed and not link.alive
    os.close(answers)
    os.close(requests)


def test_idle_agent_is_not_lost(world: World, clock: Clock) -> None:
    """For a hundred seconds, of which ten at a time pass without a word."""
    link = world.link("h1")

    def heard() -> bool:
        clock.sleep(0.001)
        return clock.now - link.heard < 1

    for _ in range(10):
        clock.sleep(10)
        waiting.until(heard, "the answer to a ping")
    assert link.alive and world.remote.double(1) == 2 and len(world.opened) == 1


def test_malformed_answer_ends_the_stream(world: World) -> None:
    link = world.link("h1")
    os.write(world.feeds[-1], b"\xff\xff\xff\xff")
    waiting.until(lambda: not link.alive, "the end of the stream")
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
    assert ready.wait() and b'"BUG"' in sent[0]


@pytest.mark.parametrize("message", [{}, {"id": "1"}, {"id": True, "do": "double"}, {"do": "double"}])
def test_message_that_is_none_ends_the_agent(message: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        Server({}, lambda _: None).receive(message)


def test_ping_is_answered_at_once() -> None:
    sent = list[bytes]()
    Server({}, sent.append).receive({"ping": 0})
    (pong,) = Splitter().feed(sent[0])
    assert pong.keys() == {"pong"} and pong["pong"] > 0
