"""Signed requests that change something are done once: a second one with the same signature gets the first's answer.

Invariant: kept answers are bounded, for each account apart. Used on one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from wherry.service.ec2.errors import Ec2Error

KEPT_SECONDS = 600.0
"""Twice the window of dates: a request may be dated as far ahead of the daemon as behind it."""
_MAX_ANSWERS, _MAX_BYTES = 512, 65536
"""Answers kept of one account, and bytes of one."""


class Answer(NamedTuple):
    """Status and document."""

    status: int
    body: bytes


class Replays:
    """The answers of the last minutes."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, tuple[float, asyncio.Future[Answer]]]] = {}

    async def once(
        self, uid: int, signature: str, make: Callable[[], Awaitable[Answer]], secret: bool = False
    ) -> Answer:
        """The answer that `make` gives, or gave to this signature. RequestLimitExceeded; RequestExpired for a repeated
        request whose answer was `secret` or long, and so is not kept."""
        now = time.monotonic()
        self._forget(now)
        of = self._kept.setdefault(uid, {})
        if found := of.get(signature):
            return await asyncio.shield(found[1])
        if len(of) >= _MAX_ANSWERS:
            what = f"An account may change {_MAX_ANSWERS} things in {KEPT_SECONDS / 60:.0f} minutes"
            raise Ec2Error("RequestLimitExceeded", what, 503)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        of[signature] = (now + KEPT_SECONDS, future)
        try:
            answer = await make()
        except Exception as error:
            future.set_exception(error)
            future.exception()  # it is seen here: nobody may wait for it
            raise
        except BaseException:  # the daemon ends
            future.cancel()
            raise
        future.set_result(answer)
        if secret or len(answer.body) > _MAX_BYTES:
            gone: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            gone.set_exception(Ec2Error("RequestExpired", "The request was done before, and its answer is not kept"))
            gone.exception()
            of[signature] = (now + KEPT_SECONDS, gone)
        return answer

    def _forget(self, now: float) -> None:
        """Of every account, also of an account that asks no more."""
        for uid, of in list(self._kept.items()):
            for ended in [signature for signature, (until, _) in of.items() if until < now]:
                del of[ended]
            if not of:
                del self._kept[uid]
