"""Output of tile processes, for a long-polling request.

Invariant: nothing polls. One connection to the name server is attached to all of the processes and waits for events, so
a program that is measured is not disturbed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from wherry_tiles.manycore.board import Board, Event, gone, raise_refusal

_GATHER = 0.05
"""Seconds for which output is collected after the first line, so that one answer has many."""
_MAX_CHARACTERS = 1 << 20
"""Characters of output in one answer, about."""
_LINE = 1 << 16


async def output(board: Board, offsets: Mapping[int, int], wait: float, to_end: bool) -> list[Event]:
    """`output` of processes from these offsets on, then `ended` or `lost` of each, as soon as there is some of it.

    Empty when there is none within `wait` seconds (at least _GATHER). With `to_end` it returns when all processes have
    ended, the time is over, or the answer is full.
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
    while left and size < _MAX_CHARACTERS:
        try:
            async with asyncio.timeout_at(deadline):
                line = await reader.readline()
        except TimeoutError:
            break
        except OSError:
            line = b""
        if not line.endswith(b"\n"):  # the server ended, or this request was too slow: the next one continues
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
