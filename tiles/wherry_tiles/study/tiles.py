"""Tiles for one run of the study `manycore`, and programs on them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from wherry.base.paths import native_library
from wherry.lab.study.levels import RunFailed
from wherry_tiles.client import TileRequests
from wherry_tiles.study.levels import SLAVES

READY = 60.0
"""Time limit in seconds until a program is ready."""


@contextmanager
def tiles(
    client: TileRequests,
    count: int,
    cores: int,
    hosts: Sequence[str] = (),
    build: str = "separated",
    mesh: Mapping[str, str] | None = None,
    balance: bool = False,
) -> Iterator[None]:
    """Starts tiles for one run and stops them at the end. Raises RunFailed if they printed anything. `mesh`: the keys
    of a tiles file that declare one."""
    spec = {"tiles": count, "cores": cores, "hosts": list(hosts), **(mesh or {})}
    client.tiles_up(spec, "the study", build=build, balance=balance)
    try:
        yield
    finally:
        text = client.tiles_down()["said"]
    if text:
        raise RunFailed(f"a tile printed: {text[:200]}")


def tile_program(name: str) -> Path:
    return native_library("tile") / name


def cores_of(threads: int) -> int:
    """Cores of a tile: the master's and one for each thread, the first included, up to the maximum."""
    return 1 + min(SLAVES, threads + 1)


def start_program(client: TileRequests, name: str, words: Sequence[str], tile: int | None = None) -> int:
    return int(client.start_on_tile(str(tile_program(name)), list(words), tile)[0]["process"])


def await_ready(client: TileRequests, process: int) -> None:
    """Waits until the program has printed `ready`."""
    text, limit = "", time.monotonic() + READY
    for event in client.tile_output([process]):
        text += event.get("text", "")
        if "ready" in text:
            return
        if event["event"] in ("ended", "lost") or time.monotonic() > limit:
            break
    raise RunFailed(f"the program did not get ready: {text[:200]}")


def output_of(client: TileRequests, name: str, *words: str) -> str:
    """Runs a program and returns its output. It is read by one request at the end, so nothing polls while it runs."""
    events = list(client.tile_output([start_program(client, name, words)], to_end=True))
    if events[-1]["event"] != "ended" or events[-1]["status"] != 0:
        raise RunFailed(f"{name} did not end well: {events[-1]}")
    return "".join(event["text"] for event in events if event["event"] == "output")
