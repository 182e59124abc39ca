"""Removes everything that an instance ever made on this machine, with or without its database.

Invariant: objects are found by the instance's name alone (cgroups, namespaces, directories). So a purge works after
`kill -9`, a lost database or a half-made cluster, and never touches another instance. Real hosts that do not answer
stay recorded until they are purged too.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed, WherryError
from wherry.base.paths import Instance
from wherry.base.socket_activation import listens
from wherry.fabric import named_netns
from wherry.fabric.cgroup import Cgroup
from wherry.node.container.mounts import mounted, remove_tree
from wherry.service.component import service_parts
from wherry.service.database_choice import forget, note_of
from wherry.service.instance_lock import LEADER, InstanceLock
from wherry.service.wiring import hosts_used, purge_machine
from wherry.store.address import database_url, shown

_SYSTEMD_KEEPS = ("wherryd.sock", LEADER)
"""Files of the run directory that stay where systemd listens at the socket: it starts the next daemon when a client
comes, which waits for this lock."""


def purge(instance: Instance) -> dict[str, list[str]]:
    """Removes everything and returns it, by kind. WRONG_STATE while a daemon runs; PARTLY_DONE names the remains."""
    before = remains(instance)
    lock = InstanceLock(instance)
    for _, part in service_parts():
        part.end(instance)
    for pid in _helpers(instance):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    silent_because = purge_machine(instance)
    _remove_cgroups(instance.prefix)
    database_because = forget(instance)
    notes, silent = hosts_used(instance)
    kept = [*(notes if silent else ()), *([instance.database_note] if database_because else ())]
    state = [path for path in instance.state.glob("*") if path not in kept] if kept else [instance.state]
    run = [path for path in instance.run.glob("*") if path.name not in _SYSTEMD_KEEPS]
    unremoved: list[str] = []
    for path in (*(run if listens(instance.socket) else [instance.run]), *state):
        try:
            remove_tree(path)
        except Failed as error:  # the others go all the same
            unremoved.append(str(error))
    for directory in (instance.run, instance.state):
        with contextlib.suppress(OSError):  # other instances have theirs beside it
            directory.parent.rmdir()
    remaining = remains(instance)
    lock.release()
    if any(remaining.values()):
        raise _in_part(instance, remaining, silent_because, database_because, unremoved)
    return before


def _in_part(
    instance: Instance,
    remaining: Mapping[str, list[str]],
    silent: Mapping[str, str],
    database: str,
    unremoved: Sequence[str] = (),
) -> Failed:
    """The error that names the remains; of real hosts all, the database and directories, with the reason why."""
    of_hosts = [
        f"objects on host {found}: {silent.get(found.partition(' ')[0], 'it is used again')}"
        for found in remaining.get("hosts", ())
    ]
    apart = ("hosts", "database")
    here = [f"{kind}: {', '.join(names[:3])}" for kind, names in remaining.items() if names and kind not in apart]
    here += [*unremoved, *([f"the records: {database}"] if database else [])]
    what, why = f"instance {instance.name} is removed in part", f"not removed: {'; '.join([*here, *of_hosts])}"
    remedy = "wherry down --all, once they answer" if of_hosts or database else "wherry down --all"
    return Failed(Code.PARTLY_DONE, what, why, remedy)


def remains(instance: Instance) -> dict[str, list[str]]:
    """The objects of an instance, by kind: those of components, processes, namespaces, cgroups, mounts,
    directories, a database of PostgreSQL, real hosts."""
    names = named_netns.names(instance.prefix)
    pids = set(Cgroup(instance.prefix).pids()) | _helpers(instance)
    for name in names:
        if named_netns.exists(name):
            pids |= set(named_netns.processes(name))
    return {
        **{name: part.remains(instance) for name, part in service_parts()},
        "processes": [f"{pid} ({_command(pid)})" for pid in sorted(pids)],
        "namespaces": names,
        "cgroups": _cgroups(instance.prefix),
        "mounts": [point for point, _, _ in mounted() if Path(point).is_relative_to(instance.run)],
        "directories": [str(path) for path in (instance.run, instance.state) if _is_remaining(path)],
        "database": _database(instance),
        "hosts": [f"{host} ({uri})" for host, uri in hosts_used(instance)[1].items()],
    }


def _is_remaining(directory: Path) -> bool:
    """False of a directory that is gone, or that has only the socket at which systemd listens, and the lock."""
    if not directory.exists():
        return False
    others = {path.name for path in directory.iterdir()} - set(_SYSTEMD_KEEPS)
    return bool(others) or not listens(directory / _SYSTEMD_KEEPS[0])


def _database(instance: Instance) -> list[str]:
    """The PostgreSQL database, which is not in the instance's directories."""
    try:
        note = note_of(instance)
        return [shown(database_url(note.url))] if note else []
    except WherryError as error:
        return [str(error)]


def _helpers(instance: Instance) -> set[int]:
    """Helper programs of moves that outlived their daemon, found by their environment and use of its run directory."""
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
    """The instance's cgroups, relative to their hierarchy, each once."""
    return sorted({str(path.relative_to(root)) for root in _hierarchies() for path in _tree(root / prefix)})


def _hierarchies() -> list[Path]:
    """All mounted cgroup hierarchies: an OCI runtime makes cgroups also in hierarchies that Wherry does not use."""
    return sorted({Path(point) for point, kind, _ in mounted() if kind in ("cgroup", "cgroup2")})


def _tree(top: Path) -> list[Path]:
    """A cgroup and its descendants, children first."""
    return sorted((path for path in (top, *top.rglob("*")) if path.is_dir()), reverse=True)


def _remove_cgroups(prefix: str) -> None:
    for root in _hierarchies():
        for path in _tree(root / prefix):
            with contextlib.suppress(OSError):  # `remains` reports it
                path.rmdir()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "gone"
