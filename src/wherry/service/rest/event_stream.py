"""Events as a stream (server-sent events) that continues where the client was.

Invariants: each event has its number as `id`; an account's stream ends when the account or its token does; the streams
are bounded, in all and of each user.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from wherry.base.errors import Code, Refused
from wherry.service.account_caller import AccountCaller
from wherry.service.authentication import Authentication
from wherry.service.commands import Commands
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.rest.dependencies import ContextDep, PeerDep

router = APIRouter(tags=["operations"])
STREAM_SECONDS = 240.0
"""The duration of a stream; the listener would cut it at 300 (`wherry.service.network_listener`)."""
BEAT_SECONDS = 15.0
"""Between two signs of life; at each it is asked again who the caller is."""
STREAMS, STREAMS_OF_ONE = 200, 8
"""Most streams: in all, and of one user."""
_GATHER_SECONDS = 0.05
"""Waited after a change, so that several make one look."""
_MAX_EVENTS = 100
After = Annotated[int | None, Query(ge=0, le=2**53)]
EventNumber = Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=2**53)]


class Streams:
    """The open ones. Used from one event loop."""

    def __init__(self) -> None:
        self._open: Counter[int] = Counter()

    def begin(self, uid: int) -> None:
        """Counts one more. TOO_MANY."""
        if self._open.total() >= STREAMS or self._open[uid] >= STREAMS_OF_ONE:
            why = f"you have {self._open[uid]}, all have {self._open.total()}"
            raise Refused(Code.TOO_MANY, "no more streams of events are opened now", why, "GET /v1/events?wait=20")
        self._open[uid] += 1

    def end(self, uid: int) -> None:
        """Counts one less."""
        self._open[uid] -= 1
        if not self._open[uid]:
            del self._open[uid]


class _EventStream(StreamingResponse):
    """Gives its place back when it ends, also when nobody ever read of it."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[bytes], streams: Streams, uid: int) -> None:
        super().__init__(content, headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"})
        self._streams, self._uid = streams, uid

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.end(self._uid)


@router.get("/events/stream", response_class=StreamingResponse)
async def stream_events(
    request: Request, context: ContextDep, peer: PeerDep, after: After = None, last: EventNumber = None
) -> StreamingResponse:
    """Events as they happen, as server-sent events: those after the number in Last-Event-ID, or `after`, or from now
    on. It ends after some minutes; a client then asks again from the last number that it saw."""
    begin = last if last is not None else after
    if begin is None:
        begin = await asyncio.to_thread(context.store.newest_event_id)
    streams: Streams = request.app.state.streams
    streams.begin(peer.uid)
    return _EventStream(_told(context, peer, request.app.state.authentication, begin), streams, peer.uid)


async def _told(
    context: ServiceContext, peer: PeerCredentials, authentication: Authentication, after: int
) -> AsyncIterator[bytes]:
    commands, begun = Commands(context, peer), time.monotonic()
    ends, checked = begun + STREAM_SECONDS, begun
    yield b"retry: 1000\n\n"
    with context.wakeups.waiting() as changed:
        while True:
            changed.clear()
            events = await asyncio.to_thread(commands.events, after, _MAX_EVENTS)
            for event in events:
                after = event.id
                yield f"id: {event.id}\ndata: {event.model_dump_json()}\n\n".encode()
            now = time.monotonic()
            if now >= ends:
                return
            if now - checked >= BEAT_SECONDS:
                checked = now
                if isinstance(peer, AccountCaller):
                    found = await asyncio.to_thread(authentication.again, peer)
                    if found is None:
                        return
                    peer, commands = found, Commands(context, found)
                yield b":\n\n"
            if not events:
                left = min(checked + BEAT_SECONDS, ends) - now
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), max(left, 0.0))
                    await asyncio.sleep(_GATHER_SECONDS)
