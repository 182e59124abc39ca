"""`wherry daemon`."""

from __future__ import annotations

from cyclopts import App

from wherry.base.errors import Code, LostContact
from wherry.base.paths import instance
from wherry.cli.output import Output, emit, table
from wherry.client import daemon_process

daemon = App(name="daemon", help="The daemon, which other commands start when none runs.")


@daemon.command
def start(*, group: str | None = None, output: Output = "text") -> None:
    """Start the daemon.

    Parameters
    ----------
    group
        Members of this group may use the daemon, beside root.
    """
    place = instance()
    if not daemon_process.answers(place):
        daemon_process.start(place, group)
    elif group:
        raise daemon_process.group_refused(group)
    _print(output)


@daemon.command
def stop(*, output: Output = "text") -> None:
    """Stop the daemon. Nodes and jobs run on, and the next daemon adopts them."""
    pid = daemon_process.stop(instance())
    text = f"The daemon (process {pid}) has ended." if pid else "No daemon runs."
    emit(output, "daemon-stop", {"stopped": pid}, lambda: print(text))


@daemon.command
def status(*, output: Output = "text") -> None:
    """Show whether the daemon runs. Exit code 7 when it does not."""
    if not daemon_process.answers(instance()):
        pid = daemon_process.holder(instance())
        why = f"process {pid} is not ready yet" if pid else "it was not started, or was stopped"
        raise LostContact(Code.UNREACHABLE, "no daemon answers", why, "wherry daemon start")
    _print(output)


def _print(output: str) -> None:
    place = instance()
    pid = daemon_process.holder(place)
    data = {"instance": place.name, "process": pid, "socket": str(place.socket), "log": str(place.state / "log")}
    rows = list(data.items())
    emit(output, "daemon", data, lambda: table(("DAEMON", "RUNS"), rows, ""))
