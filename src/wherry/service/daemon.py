"""`wherryd`: one instance's daemon.

It answers only after recovery, and runs until SIGTERM. Nodes and jobs then run on, and the next daemon adopts them.
The other commands (`doctor`, `install`, `sweep`, `backup`, `restore`, `migrate`) print one JSON document and end; they
need no daemon.

Invariant: a daemon holds the instance's lock from before it listens until its process is gone. Threads that it does not
wait for (a move of a Xen host may take minutes) therefore never write beside the next daemon.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from wherry.base import open_files
from wherry.base.errors import Bug, Code, Refused, WherryError
from wherry.base.paths import Instance, instance
from wherry.base.socket_activation import inherited, say_ready, turn_away
from wherry.base.version import __version__

if TYPE_CHECKING:
    from wherry.service.context import ServiceContext
    from wherry.service.instance_lock import InstanceLock
    from wherry.service.ssh.server import SshServer

_SESSION_NICE = -15
_TASKS_SECONDS, _OPERATIONS_SECONDS = 10.0, 20.0
"""How long an ending daemon waits for its periodic threads and for its operations. Their sum must be less than the 40 s
between SIGTERM and SIGKILL (`wherry.client.daemon_process`)."""
_REMOVAL_SECONDS = 30.0
"""How long a daemon that systemd starts waits while the instance is being removed, before it takes the instance."""
log = logging.getLogger("wherry.daemon")
_UMASK = 0o066
"""Other users may pass through directories, as owners of jobs must, but neither list nor read them."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> None:
    """The program `wherryd`."""
    arguments = _arguments().parse_args()
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}".lstrip(":")
    code = 0
    try:
        if arguments.command == "serve":
            _serve(instance(), arguments)
        else:
            print(json.dumps(_COMMANDS[arguments.command](arguments)))
    except WherryError as error:
        log.error("%s%s", error, f"; {error.next}" if error.next else "")
        print(json.dumps({"error": error.to_dict()}))
        code = error.code.exit_code
    sys.stdout.flush()
    logging.shutdown()
    os._exit(code)  # without waiting for remaining threads


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wherryd", description="The daemon of Wherry; `wherry` starts it when needed."
    )
    parser.add_argument("command", nargs="?", default="serve", choices=["serve", *_COMMANDS])
    parser.add_argument("argument", nargs="?", default="", help="of backup and restore a file, of migrate a revision")
    parser.add_argument("--keys", default="", help="of restore: a file of keys that open the secrets of the backup")
    parser.add_argument("--group", help="members of this group may use the daemon, beside root")
    parser.add_argument("--detach", action="store_true", help="run in the background")
    parser.add_argument("--resume", action="store_true", help="start only if the instance has state to take over")
    parser.add_argument("--standby", action="store_true", help="wait for the place of the daemon that runs")
    parser.add_argument("--version", action="version", version=f"wherryd {__version__}")
    return parser


def _doctor(_: argparse.Namespace) -> dict[str, object]:
    from wherry.service.doctor import examine

    return {"findings": [finding.to_dict() for finding in examine()]}


def _install(_: argparse.Namespace) -> dict[str, object]:
    from wherry.service.installation import install

    return install()


def _sweep(_: argparse.Namespace) -> dict[str, object]:
    from wherry.service.purge import purge

    return {"removed": purge(instance())}


def _backup(given: argparse.Namespace) -> dict[str, object]:
    from wherry.service.record_keeping import backup

    return backup(instance(), Path(given.argument))


def _restore(given: argparse.Namespace) -> dict[str, object]:
    from wherry.service.record_keeping import restore

    return restore(instance(), Path(given.argument), Path(given.keys) if given.keys else None)


def _migrate(given: argparse.Namespace) -> dict[str, object]:
    from wherry.service.record_keeping import migrate

    return migrate(instance(), given.argument)


_COMMANDS: dict[str, Callable[[argparse.Namespace], dict[str, object]]] = {
    "doctor": _doctor,
    "install": _install,
    "sweep": _sweep,
    "backup": _backup,
    "restore": _restore,
    "migrate": _migrate,
}


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Modules stay: the garbage collector looks at none, neither while they are imported nor in the midst of a move."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _serve(served: Instance, arguments: argparse.Namespace) -> None:
    with _importing():
        from wherry.service.credentials import group_id
        from wherry.service.database_choice import address_of, taken_variable
        from wherry.service.instance_lock import LEADER, STANDBY, InstanceLock
        from wherry.service.log import log_to_file

    listener = inherited(served.socket)
    group = group_id(arguments.group) if arguments.group else None
    resume, given = arguments.resume, taken_variable()
    if resume and not _resumable(served):
        raise Refused(Code.TAKEN_DOWN, f"instance {served.name} was removed meanwhile", "", "wherry up FILE")
    address_of(served, given)  # refused while its caller still waits
    if listener:
        _turn_away_on_sigterm(listener)
        _await_removal(served)
    launcher = _detach() if arguments.detach else None
    os.chdir("/")
    if launcher is not None or os.getsid(0) == os.getpid():  # a session that it shares with nobody
        _raise_session_priority()
    _make_directories(served)
    log_to_file(served)
    lock = InstanceLock(served, STANDBY if arguments.standby else LEADER)
    _make_directories(served)  # again: a purge that held the lock before has removed them, and the log
    log_to_file(served)
    if launcher is not None:
        os.close(launcher)
    if arguments.standby:
        if not _stand_by(served, group, given):
            return
        lock.release()
        log_to_file(served)  # the other daemon may have begun another file
    # The leader's lock is never released: the kernel does it when the process is gone.
    try:
        if resume and not _resumable(served):  # removed while this process started
            return
        served.ending.unlink(missing_ok=True)
        log.info("wherryd %s of instance %s begins", __version__, served.name)
        _run(served, group, given, listener)
        log.info("wherryd ended; nodes and jobs run on")
    except WherryError:
        raise
    except Exception as error:
        log.exception("wherryd cannot continue")
        raise Bug("the daemon cannot continue", repr(error)) from error


def _stand_by(served: Instance, group: int | None, given: str) -> InstanceLock | None:
    """The instance's lock, once no leader holds it; None when the instance was removed meanwhile."""
    from wherry.service.standby import Standby, saying_who_leads

    log.info("wherryd %s of instance %s is a standby", __version__, served.name)
    path = served.standby_socket
    with saying_who_leads(served, listening(path, group), path):
        lock = Standby(served, given).wait()
    log.info("the standby %s", "takes over" if lock else "ends, as the instance is being removed")
    return lock


def _turn_away_on_sigterm(listener: socket.socket) -> None:
    """Until `_run` handles the signal."""

    def end(number: int, _frame: FrameType | None) -> None:
        turn_away(listener)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)


def _await_removal(served: Instance) -> None:
    """Waits for the end of `wherry down --all`: a client of the removed instance had systemd start this daemon, and
    systemd would start another one at once if it ended."""
    from wherry.service.instance_lock import is_held

    deadline = time.monotonic() + _REMOVAL_SECONDS
    while (served.ending.exists() or is_held(served)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _resumable(served: Instance) -> bool:
    """False when the instance is removed or about to be: a waiting client must not bring it back."""
    return served.keeps_records() and not served.ending.exists()


def _raise_session_priority() -> None:
    """Gives the processes of a move priority where the kernel's autogroup scheduler shares CPU by session."""
    with contextlib.suppress(OSError):  # a kernel without autogroups
        Path("/proc/self/autogroup").write_text(str(_SESSION_NICE))


def _make_directories(served: Instance) -> None:
    os.umask(0o022)  # the parent directories are public
    for directory in (served.run, served.state):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(exist_ok=True)
        directory.chmod(0o711)
    os.umask(_UMASK)


def _detach() -> int:
    """Continues in a process of its own session without a terminal. The launching process ends when the returned pipe
    is closed.

    The pipe is closed once the daemon holds the lock, or has ended because another one holds it. So when the launching
    command returns, exactly one daemon holds the lock, and no late starter comes up after that one is stopped.
    """
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
    return writer


def _lost_lease() -> None:
    """Ends the process at once: whatever one of its threads is about to do is another daemon's to decide."""
    log.error("another daemon has taken over, as this one did not respond; it ends")
    logging.shutdown()
    os._exit(Code.WRONG_STATE.exit_code)


def _run(served: Instance, group: int | None, given: str = "", given_socket: socket.socket | None = None) -> None:
    with _importing():
        import uvicorn

        from wherry.base.components import installed, load
        from wherry.service.allocation_keeper import AllocationKeeper
        from wherry.service.announced_drains import AnnouncedDrains
        from wherry.service.auto_balancer import AutoBalancer
        from wherry.service.cluster_leases import ClusterLeases
        from wherry.service.cluster_queue import ClusterQueue, resume
        from wherry.service.context import ServiceContext
        from wherry.service.credentials import PeerProtocol
        from wherry.service.database_choice import open_store
        from wherry.service.gain_measurement import GainMeasurement
        from wherry.service.health_monitor import HealthMonitor
        from wherry.service.inside_server import InsideServer
        from wherry.service.move_recovery import MoveRecovery
        from wherry.service.network_listener import DaemonServer, NetworkListener
        from wherry.service.periodic import stop_all
        from wherry.service.program_profiler import ProgramProfiler
        from wherry.service.rank_maps import RankMaps
        from wherry.service.rest.app import make_app
        from wherry.service.standby import LeaseKeeper
        from wherry.service.uncounted_jobs import UncountedJobs

        component_tasks = [load(task) for component in installed() for task in component.tasks]

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    open_files.raise_limit()  # each connection, port, job and step of a move takes some
    servers: list[uvicorn.Server] = []
    received: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        """For signals during the recovery, and before uvicorn handles them. It raises them again when it has ended."""
        received.append(number)
        for server in servers:
            server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    store, lease = open_store(served, given, _lost_lease)
    if lease:
        LeaseKeeper(lease).start()  # never stopped: it ends with the process, as the lock does
    context = ServiceContext(served, store)
    context.recover(resume)
    balancers = (AutoBalancer(context), GainMeasurement(context), ProgramProfiler(context))
    keepers = (HealthMonitor(context), MoveRecovery(context), AnnouncedDrains(context), AllocationKeeper(context))
    leases = (ClusterLeases(context), ClusterQueue(context))
    brought = (task(context) for task in component_tasks)
    lookers = (RankMaps(context), UncountedJobs(context))
    tasks = (*keepers, *leases, *lookers, InsideServer(context, group), *balancers, *brought)
    for task in tasks:
        task.start()
    app = make_app(context, group)
    context.network = NetworkListener(app, context.store, served.state / "tls", partial(_ssh_server, context))
    config = uvicorn.Config(
        app,
        http=PeerProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=2,
    )
    try:
        if given_socket is not None:
            _open_to(served.socket, group)
        with (given_socket.dup() if given_socket else None) or listening(served.socket, group) as listener:
            log.info("ready at %s", served.socket)
            say_ready()
            servers.append(DaemonServer(config, context.network))
            servers[0].should_exit = bool(received)
            servers[0].run([listener])
    finally:
        if given_socket is None:  # else systemd listens there
            served.socket.unlink(missing_ok=True)
        stop_all(tasks, _TASKS_SECONDS)
        context.close(_OPERATIONS_SECONDS)
        if given_socket is not None:
            turn_away(given_socket)


def _ssh_server(context: ServiceContext, host_key: bytes) -> SshServer:
    from wherry.service.ssh import server  # its library takes 0.2 s to import, and few daemons serve SSH

    return server.SshServer(context, host_key)


def listening(path: Path, group: int | None) -> socket.socket:
    """The daemon's listening socket: mode 0600, or 0660 with a group. It is renamed to `path` once it listens."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(new))
    new.chmod(0o600)
    _open_to(new, group)
    listener.listen(128)
    new.rename(path)
    return listener


def _open_to(path: Path, group: int | None) -> None:
    if group is not None:
        shutil.chown(path, group=group)
        path.chmod(0o660)


if __name__ == "__main__":
    main()
