"""What processes of tiles say, for a request that waits for it.

Invariant: nothing polls. One connection to the name server is attached to all of the processes and waits for what it
sends, so a program that is measured is disturbed by no look at whether it has said something.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from wherry.manycore.board import Board, Event, gone, raise_refusal

_GATHER = 0.05
"""Seconds for which more output is awaited after the first of it: one answer for many lines."""
_MOST = 1 << 20
"""Characters of output in one answer, about."""
_LINE = 1 << 16


async def output(board: Board, offsets: Mapping[int, int], wait: float, to_end: bool) -> list[Event]:
    """`output` of processes from these offsets on, then `ended` or `lost` of each, as soon as there is some of it.

    Nothing when there is none within `wait` seconds, or a moment. With `to_end` it returns when all of the processes
    have ended, or the time is over, or an answer is full.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(str(board.path), limit=_LINE)
    except OSError:
        if not any(offsets.values()):
            board.check_up()
        raise gone() from None
    try:
        words = ["attach", *(f"{process}:{offset}" for process, offset in offsets.items())]
        writer.write(("\t".join(words) + "\n").encode())
        return await _events(reader, set(offsets), wait, to_end)
    finally:
        writer.close()


async def _events(reader: asyncio.StreamReader, left: set[int], wait: float, to_end: bool) -> list[Event]:
    events: list[Event] = []
    clock, size = asyncio.get_running_loop().time, 0
    deadline = clock() + max(wait, _GATHER)
    while left and size < _MOST:
        try:
            async with asyncio.timeout_at(deadline):
                line = await reader.readline()
        except TimeoutError:
            break
        except OSError:
            line = b""
        if not line.endswith(b"\n"):  # it has ended, or this request read too slowly: the next one goes on
            if events:
                break
            raise gone()
        event = json.loads(line)
        raise_refusal(event, "attach")
        if not events and not to_end:
            deadline = min(deadline, clock() + _GATHER)
        events.append(event)
        if event["event"] == "output":
            size += len(event["text"])
        else:
            left.discard(event["process"])
    return events
