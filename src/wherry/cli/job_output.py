"""The output of a job, as commands show it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from wherry.cli.output import emit

if TYPE_CHECKING:
    from wherry.client.client import Chunk
    from wherry.model.records import Job


def empty_streams() -> dict[str, bytearray]:
    return {"stdout": bytearray(), "stderr": bytearray()}


def emit_streams(job: Job, kept: dict[str, bytearray]) -> None:
    streams = {stream: bytes(data).decode(errors="replace") for stream, data in kept.items()}
    emit("json", "run", {"job": job, **streams}, lambda: None)


def write_chunk(chunk: Chunk, kept: dict[str, bytearray], output: str) -> None:
    stream, _, data = chunk
    if output == "json":
        kept[stream] += data
        return
    target = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    target.write(data)
    target.flush()
