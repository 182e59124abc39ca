"""`wherry down --all --instances`: the other instances of this machine, and whether the user agrees to their end."""

from __future__ import annotations

from collections.abc import Sequence

from wherry.base.errors import Code, Refused
from wherry.base.paths import Instance, instance, instances
from wherry.cli.output import agrees, is_interactive, say, table
from wherry.client import daemon_process


def others(agreed: bool) -> list[Instance]:
    """All instances but this one, when the user agrees to their removal: by --yes, or on a terminal when asked."""
    mine = instance().name
    found = [place for place in instances() if place.name != mine]
    if not found or agreed:
        return found
    names = ", ".join(place.name for place in found)
    if not is_interactive():
        what, why = f"this would remove the instances {names} too", "there is no terminal to ask at"
        raise Refused(Code.WRONG_STATE, what, why, "wherry down --all --instances --yes")
    _show(found)
    if not agrees(f"Remove them and the instance {mine}, with all clusters, jobs and output?"):
        raise Refused(Code.CANCELLED, "nothing was removed", "", "wherry down --all")
    return found


def _show(found: Sequence[Instance]) -> None:
    rows = []
    for place in found:
        pid = daemon_process.holder(place)
        nodes = {path.name.partition("@")[0] for path in (place.run / "nodes").glob("*@*")}
        rows.append((place.name, f"process {pid}" if pid else "none", len(nodes)))
    table(("INSTANCE", "DAEMON", "CONTAINERS"), rows, "")


def noted(place: Instance, error: Exception) -> str:
    """Tells that an instance could not be removed; returns its name."""
    say(f"instance {place.name}: {error}")
    return place.name
