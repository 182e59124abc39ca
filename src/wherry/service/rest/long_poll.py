"""Long polls: a request that waits until there is news."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from wherry.service.context import ServiceContext
from wherry.service.wakeups import room_in

Found = TypeVar("Found")


async def long_poll(
    context: ServiceContext,
    read: Callable[[], Found | None],
    wait: float,
    directory: Path | None = None,
    fifo: Path | None = None,
) -> Found | None:
    """Calls `read` until it returns something true or `wait` seconds are over; returns its last result.

    Between two calls the request sleeps until a row changes, a file in `directory` is written, or `fifo` is writable.
    """
    deadline = time.monotonic() + wait
    with context.wakeups.waiting(directory) as changed:
        while True:
            changed.clear()
            found = await asyncio.to_thread(read)
            remaining = deadline - time.monotonic()
            if found or remaining <= 0:
                return found
            with room_in(fifo, changed) if fifo else contextlib.nullcontext(), contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), remaining)
