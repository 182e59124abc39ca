"""Tiles that cannot be started, and the client of their name server."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import waiting
from wherry.base.errors import Code, Failed, LostContact, Refused
from wherry_tiles.manycore import launch as launch_module
from wherry_tiles.manycore.board import Board
from wherry_tiles.manycore.launch import Place, check_hosts, launch
from wherry_tiles.spec import TilesSpec


def test_a_host_whose_tiles_cannot_be_started_leaves_none_on_the_others(tmp_path: Path) -> None:
    (tmp_path / "tiles.1.log").mkdir()  # where the second host's would write
    with pytest.raises(Refused, match="cannot write"):
        Board(tmp_path / "tiles.sock").up(TilesSpec(tiles=1, cores=2), places=[Place("", "127.0.0.1")] * 2)
    waiting.until(lambda: not _processes_of(tmp_path), "the end of the killed boards")


@pytest.mark.parametrize("said", ["no event", '{"event": "ready"}', ""])
def test_a_board_that_says_something_else_leaves_no_process(tmp_path: Path, said: str) -> None:
    program = tmp_path / "wherry-tiles"
    program.write_text(f"#!/bin/sh\necho '{said}'\nexec sleep 3600\n")
    program.chmod(0o755)
    socket, before = tmp_path / "tiles.sock", _children()
    with pytest.raises(Failed, match="the tiles did not start"):
        launch(socket, TilesSpec(tiles=1, cores=2), [Place("", "127.0.0.1")], program)
    assert _children() <= before


def _children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def _processes_of(directory: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(directory) in (process / "cmdline").read_text():
                found.append(process.name)
    return found


# The client of the tiles' name server.


@pytest.mark.parametrize("said", [b"", b'{"event": "tiles", "tiles": [{"tile": 0}'], ids=["nothing", "half"])
def test_a_name_server_that_dies_while_it_answers_is_told(tmp_path: Path, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "tiles.sock"))
        listener.listen()

        def die() -> None:
            end, _ = listener.accept()
            with end:
                end.recv(100)
                end.sendall(said)

        dying = threading.Thread(target=die)
        dying.start()
        with pytest.raises(LostContact) as lost:
            Board(tmp_path / "tiles.sock").ps()
        dying.join()
    assert lost.value.code == Code.UNREACHABLE


@pytest.mark.parametrize("driver", ["ssh", "slurm", "libvirt"])
def test_tiles_do_not_run_on_real_hosts(driver: str) -> None:
    with pytest.raises(Refused, match="tiles do not run"):
        check_hosts(driver)


@pytest.mark.usefixtures("thousand_descriptors")
def test_the_first_event_is_read_by_a_descriptor_beyond_select(tmp_path: Path) -> None:
    with subprocess.Popen(["echo", '{"event": "ready"}'], stdout=subprocess.PIPE) as board:
        assert launch_module._receive(tmp_path / "tiles", [board], "ready") == {"event": "ready"}
