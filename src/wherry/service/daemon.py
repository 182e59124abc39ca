"""`wherryd`: one instance's daemon.

It listens only when recovery is done. It never ends by itself; SIGTERM ends it and leaves nodes and jobs running, to be
adopted by the next one. `wherryd doctor` and `wherryd sweep` need no daemon: they print one JSON document and end.

Invariant: a daemon that listens holds the instance's lock, and holds it until its process is gone: what it began and
does not wait for (a Xen host may be at a move for minutes) must not write beside the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

from wherry import __version__
from wherry.base.errors import Bug, Code, Refused, WherryError
from wherry.base.paths import Instance, instance

_ROWS = "wherry.db"
_SESSION_NICE = -15
log = logging.getLogger("wherry.daemon")
_UMASK = 0o066
"""Others may pass through directories, as a job's user does on the way to its own; they list and read nothing."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> None:
    """The program `wherryd`."""
    arguments = _arguments().parse_args()
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}".lstrip(":")
    code = 0
    try:
        if arguments.act == "serve":
            _serve(instance(), arguments.group, arguments.detach, arguments.resume)
        else:
            print(json.dumps(_sweep() if arguments.act == "sweep" else _doctor()))
    except WherryError as error:
        log.error("%s", error)
        print(json.dumps({"error": error.to_dict()}))
        code = error.code.exit_code
    sys.stdout.flush()
    logging.shutdown()
    os._exit(code)  # threads that are left are not waited for


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wherryd", description="The daemon of Wherry; `wherry` starts it when needed."
    )
    parser.add_argument("act", nargs="?", default="serve", choices=["serve", "doctor", "sweep"])
    parser.add_argument("--group", help="members of this group may use the daemon, beside root")
    parser.add_argument("--detach", action="store_true", help="run in the background")
    parser.add_argument("--resume", action="store_true", help="only when there is something to take over")
    parser.add_argument("--version", action="version", version=f"wherryd {__version__}")
    return parser


def _doctor() -> dict[str, object]:
    from wherry.service.doctor import examine

    return {"findings": [finding.to_dict() for finding in examine()]}


def _sweep() -> dict[str, object]:
    from wherry.service.purge import purge

    return {"removed": purge(instance())}


def _serve(place: Instance, group_name: str | None, detach: bool, resume: bool) -> None:
    from wherry.service.credentials import group_id
    from wherry.service.instance_lock import InstanceLock
    from wherry.service.log import log_to_file

    group = group_id(group_name) if group_name else None
    if resume and not _resumable(place):
        raise Refused(Code.NOT_FOUND, f"instance {place.name} was taken down meanwhile", "", "wherry up FILE")
    held_up = _detach() if detach else None
    _make_directories(place)
    os.umask(_UMASK)
    os.chdir("/")
    log_to_file(place)
    _weigh_session()
    InstanceLock(place)  # released by the kernel when the process is gone, not before
    if held_up is not None:
        os.close(held_up)
    try:
        if resume and not _resumable(place):  # that began while this process did
            return
        place.ending.unlink(missing_ok=True)
        log.info("wherryd %s of instance %s begins", __version__, place.name)
        _run(place, group)
        log.info("wherryd ended; nodes and jobs run on")
    except WherryError:
        raise
    except Exception as error:
        log.exception("wherryd cannot go on")
        raise Bug("the daemon cannot go on", repr(error)) from error


def _resumable(place: Instance) -> bool:
    """False when the instance is removed or about to be: a client that waits must not bring it back."""
    return (place.state / _ROWS).exists() and not place.ending.exists()


def _weigh_session() -> None:
    """Lets what a move starts have the CPU when it asks, also where the scheduler groups processes by session."""
    with contextlib.suppress(OSError):  # no such grouping in this kernel
        Path("/proc/self/autogroup").write_text(str(_SESSION_NICE))


def _make_directories(place: Instance) -> None:
    os.umask(0o022)  # what is above ours is everybody's
    for directory in (place.run, place.state):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(exist_ok=True)
        directory.chmod(0o711)


def _detach() -> int:
    """Becomes a process of its own session without a terminal; the caller's process ends when that closes what this
    returns, or has ended.

    So whoever starts a daemon has, when that command is over, either it or the one that was sooner: none that is late
    comes up after the other was stopped.
    """
    ours, theirs = os.pipe()
    if os.fork():
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    os.close(ours)
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
    return theirs


def _run(place: Instance, group: int | None) -> None:
    import uvicorn

    from wherry.service.auto_balancer import AutoBalancer
    from wherry.service.context import ServiceContext
    from wherry.service.credentials import PeerProtocol
    from wherry.service.health_monitor import HealthMonitor
    from wherry.service.move_recovery import MoveRecovery
    from wherry.service.rest.app import make_app
    from wherry.service.tile_balance import TileBalance
    from wherry.store import Store

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # uvicorn ends the server on these, then repeats them for whoever had them before: that must not kill us midway.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    context = ServiceContext(place, Store(place.state / _ROWS))
    context.recover()
    tasks = (HealthMonitor(context), AutoBalancer(context), MoveRecovery(context), TileBalance(context))
    for task in tasks:
        task.start()
    config = uvicorn.Config(
        make_app(context, group),
        http=PeerProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=2,
    )
    try:
        with listening(place.socket, group) as listener:
            log.info("ready at %s", place.socket)
            uvicorn.Server(config).run([listener])
    finally:
        place.socket.unlink(missing_ok=True)
        for task in tasks:
            task.stop()
        context.close()


def listening(path: Path, group: int | None) -> socket.socket:
    """The socket of the daemon: 0600, or 0660 of a group. It gets its name when it listens already."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(new))
    new.chmod(0o600)
    if group is not None:
        shutil.chown(new, group=group)
        new.chmod(0o660)
    listener.listen(128)
    new.rename(path)
    return listener


if __name__ == "__main__":
    main()
