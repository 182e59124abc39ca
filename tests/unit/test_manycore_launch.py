"""Tiles that cannot be started."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from wherry.base.errors import Refused
from wherry.manycore.board import Board
from wherry.manycore.launch import Place
from wherry.model.tiles import TilesSpec


def test_a_host_whose_tiles_cannot_be_started_leaves_none_on_the_others(tmp_path: Path) -> None:
    (tmp_path / "tiles.1.log").mkdir()  # where the second host's would write
    with pytest.raises(Refused, match="cannot write"):
        Board(tmp_path / "tiles.sock").up(TilesSpec(tiles=1, cores=2), places=[Place("", "127.0.0.1")] * 2)
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(tmp_path) in (process / "cmdline").read_text():
                left.append(process.name)
    assert left == []
