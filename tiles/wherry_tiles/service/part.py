"""The part of tiles in the daemon of an instance (wherry.service.component.ServicePart)."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence

from wherry.base.errors import WherryError
from wherry.base.paths import Instance, native_program
from wherry.service.findings import Finding, Health, judged
from wherry.store import Store
from wherry_tiles.manycore.board import Board, tiles_socket

TILES_AT = "tiles at"
"""Setting: JSON list of the hosts on which tiles were last started; empty for tiles outside the fabric."""


def board_of(instance: Instance) -> Board:
    """The tiles of an instance."""
    return Board(tiles_socket(instance))


def hosts_in_use(instance: Instance, store: Store) -> list[str]:
    """The hosts in whose network namespaces tiles run; empty for tiles outside the fabric, or without tiles.

    The names are stored before the tiles start, so they count only while the name server of the tiles answers.
    """
    hosts = json.loads(store.setting(TILES_AT) or "[]")
    return list(hosts) if hosts and board_of(instance).is_up() else []


def use_of(hosts: Sequence[str]) -> tuple[str, str]:
    """The reason why these hosts must stay, and the command that ends the tiles."""
    return f"tiles run in the network of {', '.join(hosts)} and cannot be moved away", "wherry tile down"


def findings() -> Iterator[Finding]:
    """How this machine supports tiles and their moves."""
    command = [str(native_program("wherry-tile")), "--machine"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    if not found["system_calls_refused"]:
        bad = "programs of tiles do not start: the kernel cannot refuse them system calls"
        yield Finding("tiles", Health.MISSING, bad, "use Linux 5.11 or later")
        return
    turns = "short turns" if found["short_turns"] else "turns of the usual length (Linux 6.12 has shorter ones)"
    text = f"precopy by {found['tracking']}; {turns}; {found['extended_state']} bytes of extended state"
    bad = f"{text}; precopy would disturb less with {found['lacks']}"
    yield judged("tiles", not found["lacks"], text, bad, "use Linux 6.7 or later, as root", Health.LIMITED)


def end(instance: Instance) -> None:
    """Ends the name server of the tiles, and with it every tile."""
    board = board_of(instance)
    if board.path.exists():
        with contextlib.suppress(WherryError, OSError):  # the name server is dead: its tiles ended with it
            board.down()


def remains(instance: Instance) -> list[str]:
    """The number of tiles that are up."""
    board = board_of(instance)
    if not board.is_up():
        return []
    try:
        return [f"{len(board.ps()['tiles'])} tiles"]
    except WherryError:
        return ["tiles that do not answer"]
