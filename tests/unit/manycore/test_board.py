"""The client of the tiles' name server."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from wherry.base.errors import Code, LostContact
from wherry.manycore.board import Board


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
