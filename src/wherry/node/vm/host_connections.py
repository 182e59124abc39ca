"""Connections to the libvirtds of real hosts, one cached per host, and the facts of a host.

Invariant: only the first attempt to reach a silent host blocks its callers, _OPEN seconds at most. From then on calls
fail at once, and a background thread retries every _PAUSE seconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from wherry.base.errors import Code, LostContact, Refused, WherryError
from wherry.model.libvirt_uri import parse_uri
from wherry.model.records import HostFacts
from wherry.node.vm import domain_capabilities, libvirt_client

_OPEN = libvirt_client.OPEN
"""Seconds that a host may take to accept a connection."""
_PAUSE = 10.0
"""Seconds until a silent host is tried again."""
_MIB = 2**20


class HostConnections:
    """The hosts' libvirtds, by host name. Safe from several threads."""

    def __init__(self, uris: Mapping[str, str]) -> None:
        self.uris = dict(uris)
        self._locks = {host: threading.Lock() for host in self.uris}
        self._open: dict[str, Any] = {}
        self._failed: dict[str, tuple[float, LostContact]] = {}
        """Time and error of a host's latest failed attempt; the time is in the future during a retry."""
        self._uuids: dict[str, str] = {}
        """UUIDs of the hosts' machines, as far as their facts were read."""
        self.lost: set[str] = set()
        """Hosts that an administrator declared lost: never contacted, and copies of nodes there are ignored."""

    def connect(self, host: str) -> Any:
        """The connection to the host's libvirtd. LostContact when it does not answer, or did not just now."""
        if host in self.lost:
            what, remedy = f"host {host} is declared lost", f"wherry host restore {host}, once it answers"
            raise LostContact(Code.UNREACHABLE, what, "lost hosts are not contacted", remedy)
        with self._locks[host]:
            found = self._open.get(host)
            if found is not None and libvirt_client.is_alive(found):
                return found
            when, error = self._failed.get(host, (0.0, None))
            if error is None:
                return self._try(host)
            if time.monotonic() - when > _PAUSE:
                self._failed[host] = time.monotonic() + _OPEN, error
                threading.Thread(target=self._retry, args=(host,), name=f"retry-{host}", daemon=True).start()
            raise error

    def _try(self, host: str) -> Any:
        try:
            self._open[host] = libvirt_client.connect(self.uris[host], _OPEN)
        except LostContact as lost:
            self._failed[host] = time.monotonic(), lost
            raise
        self._failed.pop(host, None)
        return self._open[host]

    def _retry(self, host: str) -> None:
        with contextlib.suppress(LostContact):
            self._try(host)

    def open(self, host: str) -> Any:
        """A new connection, to be closed by the caller. LostContact when the host does not answer."""
        self.connect(host)
        return libvirt_client.connect(self.uris[host], _OPEN)

    def answers(self, host: str) -> bool:
        """True when the host's libvirtd accepts a connection."""
        try:
            self.connect(host)
        except WherryError:
            return False
        return True

    def _require_distinct(self, host: str, capabilities: str) -> None:
        """Refuses two hosts that are one machine, named by two addresses, say: a move between them would first remove
        the leftovers of an earlier one at its destination, which is the running node. libvirt, too, takes two libvirtds
        of one UUID for one machine."""
        uuid = ElementTree.fromstring(capabilities).findtext("host/uuid")
        for other, known in list(self._uuids.items()):
            if uuid and other != host and known == uuid:
                raise Refused(
                    Code.INVALID_FILE,
                    f"hosts {other} and {host} are the same machine",
                    f"both of their libvirtds say that the host's UUID is {uuid}",
                    "name each machine once; if they are two, give one a host_uuid in its /etc/libvirt/libvirtd.conf",
                )
        self._uuids[host] = uuid or ""

    def facts(self, host: str) -> HostFacts:
        """The host's facts. `kernel` is the hypervisor; with QEMU, features are omitted: a move compares the guest's
        CPU model instead."""
        connection = self.connect(host)
        with libvirt_client.translated_errors(f"the facts of host {host} could not be read"):
            machine, said = connection.getInfo(), connection.getCapabilities()
            self._require_distinct(host, said)
            model, features = processor(said)
            if parse_uri(self.uris[host]).hypervisor == "qemu":
                kernel, features = domain_capabilities.described(connection), frozenset()
            else:
                kernel = f"{connection.getType()} {'.'.join(map(str, domain_capabilities.version(connection)))}"
        return HostFacts(
            kernel=kernel,
            architecture=machine[0],
            cpu_model=model,
            cpu_features=features,
            memory=machine[1] * _MIB,
            runtime="",
            criu="",
        )


def processor(capabilities: str) -> tuple[str, frozenset[str]]:
    """CPU model and features from libvirt's capabilities XML (https://libvirt.org/formatcaps.html)."""
    cpu = ElementTree.fromstring(capabilities).find("host/cpu")
    if cpu is None:
        return "unknown", frozenset()
    names = (feature.get("name", "") for feature in cpu.findall("feature"))
    return cpu.findtext("model") or "unknown", frozenset(name for name in names if name)
