"""Wakeups of long polls."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import waiting
from wherry.service.wakeups import Wakeups


def test_a_directory_that_appears_late_leaves_no_inotify_watch(tmp_path: Path) -> None:
    """A request that waits before the directory exists may be the last one to end."""

    async def wait() -> None:
        wakeups, late = Wakeups(), tmp_path / "late"
        with ExitStack() as first, ExitStack() as second:
            early = first.enter_context(wakeups.waiting(late))
            late.mkdir()
            second.enter_context(wakeups.waiting(late))
            (late / "output").touch()
            await asyncio.wait_for(early.wait(), 60)
            second.close()
        inotify = wakeups._files._inotify
        assert inotify
        await asyncio.to_thread(waiting.until, lambda: not inotify._watches, "the kernel's word that it is removed")

    asyncio.run(wait())
