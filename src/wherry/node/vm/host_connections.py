"""Connections to the libvirtds of real hosts, one kept for each; and what a host says of itself.

Invariant: only the first to ask waits for a host that does not answer. From then on everybody is told so at once, and
it is asked again beside them, now and then.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from wherry.base.errors import Code, LostContact, WherryError
from wherry.model.libvirt_uri import parse_uri
from wherry.model.objects import HostFacts
from wherry.node.vm import domain_capabilities, libvirt_client

_OPEN = 20.0
"""Seconds that a host may take to let us in."""
_PAUSE = 10.0
"""Seconds until a host that did not answer is asked again."""
_KEEPALIVES = 18
"""A real host that answers none of so many, one every five seconds, is lost: a busy one starts a guest in a minute."""
_MIB = 2**20


class HostConnections:
    """The hosts' libvirtds, by name of the host. Safe from several threads."""

    def __init__(self, uris: Mapping[str, str]) -> None:
        self.uris = dict(uris)
        self._locks = {host: threading.Lock() for host in self.uris}
        self._open: dict[str, Any] = {}
        self._failed: dict[str, tuple[float, LostContact]] = {}
        """When a host was last asked in vain, and its error; the future while it is being asked."""
        self.lost: set[str] = set()
        """Hosts that an administrator declared lost: they are asked nothing, and no copy of a node there counts."""

    def connect(self, host: str) -> Any:
        """The connection to the host's libvirtd. LostContact when it does not answer, or did not a moment ago."""
        if host in self.lost:
            what, remedy = f"host {host} is declared lost", f"wherry host restore {host}, once it answers"
            raise LostContact(Code.UNREACHABLE, what, "it is asked nothing", remedy)
        with self._locks[host]:
            found = self._open.get(host)
            if found is not None and found.isAlive():
                return found
            when, error = self._failed.get(host, (0.0, None))
            if error is None:
                return self._ask(host)
            if time.monotonic() - when > _PAUSE:
                self._failed[host] = time.monotonic() + _OPEN, error
                threading.Thread(target=self._ask_again, args=(host,), name=f"reach-{host}", daemon=True).start()
            raise error

    def _ask(self, host: str) -> Any:
        try:
            self._open[host] = libvirt_client.connect(self.uris[host], _OPEN, _KEEPALIVES)
        except LostContact as lost:
            self._failed[host] = time.monotonic(), lost
            raise
        self._failed.pop(host, None)
        return self._open[host]

    def _ask_again(self, host: str) -> None:
        with contextlib.suppress(LostContact):
            self._ask(host)

    def open(self, host: str) -> Any:
        """A connection of the caller's own, who closes it. LostContact when the host does not answer."""
        self.connect(host)
        return libvirt_client.connect(self.uris[host], _OPEN, _KEEPALIVES)

    def answers(self, host: str) -> bool:
        """True when the host's libvirtd lets us in."""
        try:
            self.connect(host)
        except WherryError:
            return False
        return True

    def facts(self, host: str) -> HostFacts:
        """What the host says of itself. `kernel` is its hypervisor; with QEMU, what a guest has of the processor's
        features is the guest's own, so a move looks at that instead."""
        connection = self.connect(host)
        with libvirt_client.translated_errors(f"host {host} does not say what it is"):
            machine, said = connection.getInfo(), connection.getCapabilities()
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
    """Model and features in the XML of libvirt's capabilities (https://libvirt.org/formatcaps.html)."""
    cpu = ElementTree.fromstring(capabilities).find("host/cpu")
    if cpu is None:
        return "unknown", frozenset()
    names = (feature.get("name", "") for feature in cpu.findall("feature"))
    return cpu.findtext("model") or "unknown", frozenset(name for name in names if name)
