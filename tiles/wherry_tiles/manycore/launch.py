"""Starts `wherry-tiles`, on this machine or in the network namespaces of several hosts.

Invariant: a failed launch leaves no process behind.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import native_program
from wherry.base.wait import readable
from wherry.model.spec.fabric import BY_SSH
from wherry_tiles.spec import TilesSpec

_START = 150.0  # seconds for a start of milliseconds: longer than a board itself waits for its tiles and for others

Process = subprocess.Popen[bytes]


class Place(NamedTuple):
    """A host of tiles: its network namespace (empty: the caller's) and its address there."""

    netns: str
    address: str


def check_hosts(driver: str) -> None:
    """UNSUPPORTED when the fabric's hosts are other machines."""
    if driver in ("libvirt", *BY_SSH):
        why = "tiles are started on this machine, in the network namespaces of emulated hosts"
        what = "tiles do not run on the real hosts of a fabric"
        raise Refused(Code.UNSUPPORTED, what, why, "leave out hosts: in the tiles file")


def launch(socket: Path, spec: TilesSpec, places: list[Place], program: Path | None) -> dict[str, Any]:
    """Starts the tiles, with the first place's name server at `socket`. Returns its event when all are up."""
    tiles = program or native_program("wherry-tiles")
    words = ["--tiles", str(spec.tiles * max(1, len(places))), "--cores", str(spec.cores)]
    if spec.mesh:
        words += ["--mesh", spec.mesh, "--hop", str(round(spec.hop * 1e9))]
    if not places:
        return _ready(socket, [_start(tiles, socket, words)])
    words += ["--layout", ",".join(str(spec.tiles) for _ in places)]
    secret = secrets.token_hex(16)
    boards = [_start(tiles, socket, [*words, "--leader", f"{places[0].address}:0"], places[0], secret)]
    with _killed_on_error(boards):
        port = _receive(socket, boards, "listening")["port"]
        words += ["--leader", f"{places[0].address}:{port}"]
        for host, place in enumerate(places[1:], 1):
            path = socket.with_suffix(f".{host}.sock")
            boards.append(_start(tiles, path, [*words, "--host", str(host)], place, secret))
    return _ready(socket, boards)


def _start(tiles: Path, path: Path, words: list[str], place: Place | None = None, secret: str = "") -> Process:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log = path.with_suffix(".log").open("wb")
    except OSError as error:
        what = f"cannot write below {path.parent}"
        raise Refused(Code.PERMISSION, what, error.strerror or "", "run it as root") from None
    enter = ["nsenter", f"--net={place.netns}"] if place and place.netns else []
    with log:
        return subprocess.Popen(
            [*enter, str(tiles), "--socket", str(path), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "WHERRY_TILES_SECRET": secret},
        )


def _ready(socket: Path, boards: list[Process]) -> dict[str, Any]:
    with _killed_on_error(boards):
        event = _receive(socket, boards, "ready")
    for board in boards:
        assert board.stdout
        board.stdout.close()
    return event


@contextmanager
def _killed_on_error(boards: list[Process]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for board in boards:
            board.kill()
            board.wait()
        raise


def _receive(socket: Path, boards: list[Process], wanted: str) -> dict[str, Any]:
    """The first board's next event. Failed when it is not `wanted`."""
    stream = boards[0].stdout
    assert stream
    line = stream.readline() if readable(stream, _START) else b""
    try:
        event: dict[str, Any] = json.loads(line) if line else {"why": "the name server wrote nothing"}
    except ValueError:
        event = {"why": f"the name server wrote {line[:100]!r}"}
    if event.get("event") != wanted:
        said = (log.read_text(errors="replace").splitlines() for log in logs(socket))
        why = "; ".join(dict.fromkeys([event.get("why", str(event)), *(lines[-1][:200] for lines in said if lines)]))
        raise Failed(Code.FAILED, "the tiles did not start", why, f"cat {socket.with_suffix('.log')}")
    return event


def logs(socket: Path) -> list[Path]:
    """The log files of the boards of all hosts and of their tiles."""
    return sorted(socket.parent.glob(f"{socket.stem}*.log"))
