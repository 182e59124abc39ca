"""Reports of a tiles file, and output of programs on tiles: from any byte on, to the end, and how much is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tile_runs import NATIVE, Run, build, place, program, start

import waiting
from wherry.base.errors import Refused
from wherry_tiles.cli import read_tiles
from wherry_tiles.manycore import output as output_module
from wherry_tiles.manycore.board import Board
from wherry_tiles.spec import TilesSpec

__all__ = ["build", "start"]  # fixtures


def test_the_file(tmp_path: Path) -> None:
    examples = NATIVE.parent / "examples"
    assert read_tiles(examples / "tiles.yaml") == TilesSpec(tiles=4, cores=3).model_dump(mode="json")
    two = read_tiles(examples / "tiles-two-hosts.yaml")
    assert two == TilesSpec(tiles=3, cores=3, hosts=["a1", "b1"]).model_dump(mode="json")
    (tmp_path / "f").write_text("kind: tiles\nversion: 1\nrings: [[{name: x, program: x.elf}]]\n")
    with pytest.raises(Refused, match="no program x.elf"):
        read_tiles(tmp_path / "f")
    (tmp_path / "x.elf").touch()
    assert read_tiles(tmp_path / "f")["rings"][0][0]["program"] == f"{tmp_path}/x.elf"
    (tmp_path / "f").write_text("kind: tiles\nversion: 1\ntiles: 9\nhosts: [a, b]\n")
    with pytest.raises(Refused, match="more than 16"):
        read_tiles(tmp_path / "f")
    (tmp_path / "f").write_text("kind: tiles\nversion: 1\ncoers: 3\n")
    with pytest.raises(Refused, match="unknown key 'coers'"):
        read_tiles(tmp_path / "f")


def test_output_is_told_from_any_byte_on(start: Callable[..., Board], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in several answers; `to_end` waits for the ends, without polling."""
    board = start()
    runs = [Run(board, "count", 300) for _ in range(2)]
    for run in runs:
        run.ended()
    said = {run.process: run.text for run in runs}
    assert all(text.startswith("1\n2\n") and "\n300\nsum " in text for text in said.values())

    def told(offsets: dict[int, int], wait: float = 20.0, to_end: bool = False) -> list[dict[str, Any]]:
        return asyncio.run(output_module.output(board, offsets, wait, to_end))

    for events in (told({p: 7 for p in said}), told({p: 7 for p in said}, to_end=True)):
        for process, text in said.items():
            outputs = [e for e in events if e["process"] == process and e["event"] == "output"]
            assert outputs[0]["from"] == 7 and "".join(e["text"] for e in outputs) == text[7:]
        assert sorted(e["process"] for e in events if e["event"] == "ended") == sorted(said)
    monkeypatch.setattr(output_module, "_MAX_CHARACTERS", 100)
    process, text = runs[0].process, ""
    while (events := told({process: len(text)}))[-1]["event"] == "output":
        assert events[0]["from"] == len(text)
        text += "".join(e["text"] for e in events)
    assert text + "".join(e.get("text", "") for e in events) == said[process]
    holder = Run(board, "receive")
    assert told({holder.process: 1 << 40}, wait=0.0) == []
    with pytest.raises(Refused, match="no such process"):
        told({30: 0})


def test_output_says_what_was_dropped(start: Callable[..., Board]) -> None:
    """The newest MiB is kept, and its first byte is known."""
    board, steps = start(), 200_000  # 1.3 MB
    process = board.start(program("count"), [str(steps)])
    waiting.until(lambda: place(board, process)["state"] == "ended", "it counts")
    first, *others, _ = board.attach(process)
    text = "".join(f"{number}\n" for number in range(1, steps + 1))[first["from"] :]
    assert first["from"] > 0 and "".join(e["text"] for e in (first, *others)).startswith(text)
    events = asyncio.run(output_module.output(board, {process: 0}, 20.0, True))
    assert events[0]["from"] == first["from"]
