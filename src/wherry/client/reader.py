"""Reading: records as the daemon sends them, without models.

Invariant: a reader starts no daemon. An instance without records has empty lists; an instance with records, whose
daemon does not run, is not read.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from wherry.base.errors import Code, LostContact, Refused
from wherry.base.paths import Instance, images_directory
from wherry.client import client, daemon_process
from wherry.client.remote import configured
from wherry.client.row import Row


class Reader:
    """Reads from the daemon of an instance, if it runs."""

    def __init__(self, place: Instance | None = None) -> None:
        remote = configured() if place is None else None
        place = place or client.instance()
        self._client: client.Client | None = None
        if remote:
            self._client = client.Client(place, start=False, remote=remote)
        elif daemon_process.answers(place):
            self._client = client.Client(place, start=False)
        elif pid := daemon_process.holder(place):
            why = f"process {pid} is not ready yet"
            raise LostContact(Code.UNREACHABLE, "no daemon answers", why, "wherry daemon status")
        elif _keeps_something(place):
            what, why = "no daemon runs, so nothing can be shown", "it was stopped or killed; nodes and jobs run on"
            raise LostContact(Code.UNREACHABLE, what, why, "wherry daemon start")

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept open."""

    @property
    def up(self) -> bool:
        """False when nothing is up."""
        return self._client is not None

    def get(self, path: str, noun: str = "", **query: Any) -> Row:
        """One document. NOT_FOUND, about the `noun`, when nothing is up."""
        if not self._client:
            raise _absent(noun)
        return Row(self._client.get(path, **query))

    def rows(self, path: str, **query: Any) -> list[Row]:
        """The records of a list; none when nothing is up. NOT_FOUND for a `cluster` that is not there."""
        if self._client:
            return [Row(data) for data in self._client.each(path, **query)]
        if query.get("cluster"):
            raise _absent(f"cluster {query['cluster']!r}")
        return []

    def some(self, path: str, most: int | None, **query: Any) -> tuple[list[Row], bool]:
        """At most so many records of a list (None: all), and whether there are more."""
        if not self._client:
            return self.rows(path, **query), False
        found, more = self._client.some(path, most, **query)
        return [Row(data) for data in found], more

    def clusters(self) -> list[Row]:
        """By name."""
        return self.rows("/v1/clusters")

    def nodes(self, cluster: str | None = None) -> list[Row]:
        """By cluster and index."""
        return self.rows("/v1/nodes", cluster=cluster)

    def hosts(self) -> list[Row]:
        """The hosts and their present state."""
        return self.rows("/v1/hosts")

    def jobs(self, cluster: str | None = None) -> list[Row]:
        """Oldest first."""
        return self.rows("/v1/jobs", cluster=cluster)

    def fabric(self) -> Row:
        """`fabric` (its spec), `up`, `hosts`. NOT_FOUND when there is none."""
        return self.get("/v1/fabric", "fabric")

    def events(self, after: int = 0, wait: float = 0.0) -> list[Row]:
        """Events after number `after`, as soon as there are some."""
        if not self._client:
            return []
        return [Row(data) for data in self._client.get("/v1/events", after=after, wait=wait)]


def images() -> list[Row]:
    """The machine's images, by name. They are files that all instances share: where no daemon runs they are read here,
    and this user sees the images that it may."""
    place = client.instance()
    if configured() or daemon_process.answers(place):
        return [Row(data) for data in client.Client(start=False).get("/v1/images")]
    found = []
    for path in sorted(images_directory().glob("[!.]*/image.json")):
        with suppress(OSError, ValueError):  # being removed
            found.append(Row(json.loads(path.read_text())))
    return found


def existing(noun: str) -> client.Client:
    """A client for a command on something that is there; the daemon is started if it does not run. NOT_FOUND, about
    the `noun`, when the instance keeps nothing: to say that, no daemon is needed."""
    if configured():
        return client.Client()
    place = client.instance()
    if not daemon_process.answers(place) and not daemon_process.holder(place) and not _keeps_something(place):
        raise _absent(noun)
    return client.Client(place)


def _absent(noun: str) -> Refused:
    return Refused(Code.NOT_FOUND, f"there is no {noun}", "nothing is up", "wherry up FILE")


def _keeps_something(place: Instance) -> bool:
    """True when there is a database, or when this user may not know."""
    try:
        return place.keeps_records()
    except PermissionError:
        return True
