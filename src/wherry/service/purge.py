"""Removes everything that an instance ever made on this machine, with or without its database.

Invariant: what it removes it finds by the instance's name alone (cgroups, namespaces, directories), so it works after
`kill -9`, a lost database, or a half-made cluster; it never touches another instance's. Real hosts that do not answer
are remembered until they were swept, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from wherry.base.errors import Code, Failed, WherryError
from wherry.base.paths import Instance
from wherry.fabric import namespaces
from wherry.fabric.cgroup import Cgroup
from wherry.manycore.board import Board, tiles_socket
from wherry.node.container.mounts import mounted, remove_tree
from wherry.service.instance_lock import InstanceLock
from wherry.service.wiring import hosts_used, purge_machine


def purge(instance: Instance) -> dict[str, list[str]]:
    """What was removed, by kind. WRONG_STATE while a daemon runs; Failed when something could not be removed."""
    before = remains(instance)
    lock = InstanceLock(instance)
    _end_tiles(instance)
    for pid in _helpers(instance):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    purge_machine(instance)
    _remove_cgroups(instance.prefix)
    notes, silent = hosts_used(instance)
    state = [path for path in instance.state.glob("*") if path != notes] if silent else [instance.state]
    for path in (instance.run, *state):
        remove_tree(path)
    for directory in (instance.run, instance.state):
        with contextlib.suppress(OSError):  # other instances have theirs beside it
            directory.parent.rmdir()
    left = remains(instance)
    lock.release()
    if any(left.values()):
        what = "; ".join(f"{kind}: {', '.join(names[:3])}" for kind, names in left.items() if names)
        why = f"left: {what}"
        raise Failed(Code.PARTLY_DONE, f"instance {instance.name} is removed in part", why, "wherry down --all")
    return before


def _end_tiles(instance: Instance) -> None:
    """Ends the manycore board: its name server takes every tile with it."""
    board = Board(tiles_socket(instance))
    if board.path.exists():
        with contextlib.suppress(WherryError, OSError):  # it is dead: its tiles ended with it
            board.down()


def remains(instance: Instance) -> dict[str, list[str]]:
    """What there is of an instance: tiles, processes, namespaces, cgroups, mounts, directories; real hosts it used."""
    names = namespaces.names(instance.prefix)
    pids = set(Cgroup(instance.prefix).pids()) | _helpers(instance)
    for name in names:
        if namespaces.exists(name):
            pids |= set(namespaces.processes(name))
    return {
        "tiles": _tiles(instance),
        "processes": [f"{pid} ({_command(pid)})" for pid in sorted(pids)],
        "namespaces": names,
        "cgroups": _cgroups(instance.prefix),
        "mounts": [point for point, _, _ in mounted() if Path(point).is_relative_to(instance.run)],
        "directories": [str(path) for path in (instance.run, instance.state) if path.exists()],
        "hosts": [f"{host} ({uri})" for host, uri in hosts_used(instance)[1].items()],
    }


def _tiles(instance: Instance) -> list[str]:
    board = Board(tiles_socket(instance))
    if not board.is_up():
        return []
    try:
        return [f"{len(board.ps()['tiles'])} tiles"]
    except WherryError:
        return ["tiles that do not answer"]


def _helpers(instance: Instance) -> set[int]:
    """Programs of a move that outlived their daemon: they have its environment, and work in its run directory."""
    mark, directory = f"WHERRY_INSTANCE={instance.name}".encode(), os.fsencode(f"{instance.run}/")
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            files = [os.fsencode(os.readlink(link)) for link in (entry / "fd").iterdir()]
            if directory in (entry / "cmdline").read_bytes() or any(file.startswith(directory) for file in files):
                found.add(int(entry.name))
        except OSError:  # it has ended
            continue
    return found - {os.getpid()}


def _cgroups(prefix: str) -> list[str]:
    """The instance's cgroups, relative to the root of their controller; each once."""
    return sorted({str(path.relative_to(root)) for root in _hierarchies() for path in _tree(root / prefix)})


def _hierarchies() -> list[Path]:
    """Every mounted cgroup hierarchy: an OCI runtime makes cgroups also in those whose controllers we do not use."""
    return sorted({Path(point) for point, kind, _ in mounted() if kind in ("cgroup", "cgroup2")})


def _tree(top: Path) -> list[Path]:
    """A cgroup and all below it, those below first."""
    return sorted((path for path in (top, *top.rglob("*")) if path.is_dir()), reverse=True)


def _remove_cgroups(prefix: str) -> None:
    for root in _hierarchies():
        for path in _tree(root / prefix):
            with contextlib.suppress(OSError):  # reported by who looks for remains
                path.rmdir()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"
