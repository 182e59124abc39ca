"""Events as a stream: they come, they continue where the client was, they are bounded, and end with their account."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from accounts_world import ROOT, Accounts
from rest_service import Service, client_of

import waiting
from wherry.base.errors import Code, Refused
from wherry.service.commands import Commands
from wherry.service.credentials import PeerCredentials
from wherry.service.rest import event_stream
from wherry.service.rest.app import make_app
from wherry.service.rest.event_stream import Streams


def streamed(service: Service, number: int, **asked: Any) -> list[tuple[int, dict[str, Any]]]:
    """The next events of a stream: number and record."""
    found: list[tuple[int, dict[str, Any]]] = []
    with client_of(service) as client, client.stream("GET", "/v1/events/stream", **asked) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        id = 0
        for line in answer.iter_lines():
            if line.startswith("id: "):
                id = int(line[4:])
            elif line.startswith("data: "):
                found.append((id, json.loads(line[6:])))
            if len(found) == number:
                break
    return found


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> float:
    """The seconds from one sign of life to the next, which pass from each look at the clock to the next."""
    seconds, looks = 2.0**-7, itertools.count()
    monkeypatch.setattr(event_stream, "time", SimpleNamespace(monotonic=lambda: next(looks) * seconds))
    monkeypatch.setattr(event_stream, "BEAT_SECONDS", seconds)
    return seconds


def test_events_come_as_they_happen(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "BEAT_SECONDS", event_stream.STREAM_SECONDS)
    store, events, looked = service.context.store, Commands.events, threading.Event()

    def look(self: Commands, *words: Any) -> Any:
        found = events(self, *words)
        looked.set()
        return found

    def later() -> None:
        assert looked.wait(waiting.bound())
        store.add_event("test", "x", "one\ntwo")

    monkeypatch.setattr(Commands, "events", look)
    thread = threading.Thread(target=later)
    thread.start()
    ((id, event),) = streamed(service, 1)
    thread.join()
    assert event["kind"] == "test" and event["id"] == id == store.newest_event_id(), "none of those before"


def test_a_client_goes_on_where_it_was(service: Service) -> None:
    store = service.context.store
    numbers = [store.add_event("test", "x", str(number)).id for number in range(5)]
    assert [id for id, _ in streamed(service, 4, params={"after": numbers[0]})] == numbers[1:]
    found = streamed(service, 2, headers={"Last-Event-ID": str(numbers[2])}, params={"after": numbers[0]})
    assert [id for id, _ in found] == numbers[3:], "the header is the newer one"


@pytest.mark.parametrize("last", ["-1", "x", "9" * 30])
def test_numbers_are_bounded(http: httpx.Client, last: str) -> None:
    answer = http.get("/v1/events/stream", headers={"Last-Event-ID": last})
    assert answer.status_code == 422 and answer.json()["code"] == "USAGE"


def test_a_stream_shows_life_and_ends(service: Service, monkeypatch: pytest.MonkeyPatch, beats: float) -> None:
    monkeypatch.setattr(event_stream, "STREAM_SECONDS", 5 * beats)
    with client_of(service) as client:
        text = client.get("/v1/events/stream").text
    assert text == "retry: 1000\n\n" + 4 * ":\n\n"


def test_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "STREAMS", 3)
    monkeypatch.setattr(event_stream, "STREAMS_OF_ONE", 2)
    streams = Streams()
    for uid in (1, 1, 2):
        streams.begin(uid)
    for uid in (1, 3):
        with pytest.raises(Refused) as caught:
            streams.begin(uid)
        assert caught.value.code is Code.TOO_MANY
    streams.end(1)
    streams.begin(3)
    assert sorted(streams._open.elements()) == [1, 2, 3]


def test_a_stream_gives_its_place_back(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "STREAMS_OF_ONE", 1)
    service.context.store.add_event("test", "x", "y")

    def opened() -> bool:
        with client_of(service) as client, client.stream("GET", "/v1/events/stream", params={"after": 0}) as answer:
            assert answer.status_code in (200, 429)
            return answer.status_code == 200

    for _ in range(3):
        waiting.until(opened, "the end of the one before, which was closed")


async def told(world: Accounts, peer: PeerCredentials, act: Callable[[], object]) -> list[bytes]:
    """All pieces of a stream; `act` is called when it has begun."""
    app: Any = world.app._app
    stream = event_stream._told(world.service.context, peer, app.state.authentication, 0)
    found = []
    async for piece in stream:
        found.append(piece)
        if len(found) == 1:
            await asyncio.to_thread(act)
    return found


def test_a_stream_ends_with_its_account_and_shows_its_own(
    service: Service, monkeypatch: pytest.MonkeyPatch, beats: float
) -> None:
    monkeypatch.setattr(event_stream, "STREAM_SECONDS", 99 * beats)
    world = Accounts(service)
    uid = world.add("ann").uid
    app: Any = world.app._app
    caller = app.state.authentication.caller([f"Bearer {world.tokens['ann']}".encode()], "192.0.2.1")
    store = service.context.store
    store.add_event("test", "theirs", "secret", 5)
    store.add_event("test", "hers", "shown", uid)
    pieces = asyncio.run(told(world, caller, lambda: world.root.remove_user("ann")))
    assert b":\n\n" not in pieces, "it ends before the first sign of life"
    text = b"".join(pieces)
    assert b"shown" in text and b"secret" not in text and b"theirs" not in text


def test_root_sees_all_until_the_end(service: Service, monkeypatch: pytest.MonkeyPatch, beats: float) -> None:
    monkeypatch.setattr(event_stream, "STREAM_SECONDS", 5 * beats)
    world = Accounts(service)
    world.app = make_app(service.context)
    service.context.store.add_event("test", "theirs", "shown", 5)
    assert b"theirs" in b"".join(asyncio.run(told(world, ROOT, lambda: None)))


def test_the_newest_events(http: httpx.Client, service: Service) -> None:
    numbers = [service.context.store.add_event("test", "x", str(number)).id for number in range(5)]
    answer = http.get("/v1/events", params={"limit": 2, "newest": True})
    assert [event["id"] for event in answer.json()] == numbers[-2:]
