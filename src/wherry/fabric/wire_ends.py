"""All ends of the encrypted wire, as the daemon sees them: it hands out public keys, and has lost ends made again.

Invariant: nothing is made at a host after `close`, until the next `connect`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from wherry.base.errors import LostContact, WherryError
from wherry.base.paths import Instance
from wherry.fabric import encrypted_wire, named_netns
from wherry.fabric.encrypted_wire import EncryptedWire, WirePeer
from wherry.fabric.host_network import HostNetwork, headers
from wherry.fabric.protocol import Repair
from wherry.fabric.real_hosts import GATEWAY
from wherry.fabric.wire_host import source_address
from wherry.model.spec.fabric import FabricSpec

AtHosts = Callable[[Callable[[HostNetwork, str], None]], None]
"""Does something at all hosts that are not lost, at the same time, and raises the first error."""


class WireEnds:
    """The ends at hosts, and the heads' end here. Safe from several threads."""

    def __init__(self, instance: Instance, gateway: str, at_hosts: AtHosts) -> None:
        """`gateway`: name of the heads' namespace."""
        self._here = EncryptedWire(instance, GATEWAY, named_netns.path(gateway), encrypted_wire.HEAD_PORT)
        self._at_hosts = at_hosts
        self._lock = threading.Lock()
        """Held while ends get the keys of now, so that an earlier call cannot set those of before."""
        self._closed = False
        self._trouble = ""

    def connect(self, spec: FabricSpec, mtu: int) -> None:
        """Makes missing ends, and has all of them know each other's public keys, as they are now. `mtu` is of
        clusters."""
        with self._lock:
            self._closed = False
            self._connect(spec, mtu)

    def close(self) -> None:
        """Repairs nothing from now on."""
        with self._lock:
            self._closed = True

    def repair(self, spec: FabricSpec, mtu: int) -> list[Repair]:
        """Makes lost ends and rules of hosts that answer again. The same failure is reported once."""
        with self._lock:
            if self._closed:
                return []
            done, trouble = list[Repair](), ""
            try:
                self._repair(spec, mtu, done)
            except WherryError as error:
                trouble = f"the network between hosts could not be repaired, and is tried again: {error}"
            if trouble and trouble != self._trouble:
                done.append(Repair(text=trouble, failed=True))
            self._trouble = trouble
            return done

    def _repair(self, spec: FabricSpec, mtu: int, done: list[Repair]) -> None:
        dead = list[str]()

        def ask(network: HostNetwork, name: str) -> None:
            try:
                found = network.repair()
            except LostContact:  # asked again when it answers
                return
            if found.rules:
                text = (
                    f"the rules at {name} that keep plain packets of clusters inside its site were gone; they are back"
                )
                done.append(Repair(text=text))
            if found.wire:
                dead.append(name)

        self._at_hosts(ask)
        if self._here.lost():
            dead.append("this machine")
        if dead:
            self._connect(spec, mtu)
            done.append(Repair(text=f"the encrypted wire of {', '.join(sorted(dead))} had died; it is made again"))

    def _connect(self, spec: FabricSpec, mtu: int) -> None:
        keys, hosts = dict[str, str](), {host.name: host for host in spec.hosts}

        def ask(network: HostNetwork, name: str) -> None:
            keys[name] = network.encrypt()

        self._at_hosts(ask)
        own = self._here.make(encrypted_wire.INSIDE, mtu + headers(False))

        def peer(name: str, begins_here: bool) -> WirePeer:
            at = hosts[name].wire
            endpoint = f"{at}:{encrypted_wire.PORT}"
            return WirePeer(key=keys[name], inside=at, endpoint=endpoint, begins_here=begins_here)

        def tell(network: HostNetwork, name: str) -> None:
            endpoint = f"{source_address(hosts[name].wire)}:{encrypted_wire.HEAD_PORT}"
            head = WirePeer(key=own, inside=encrypted_wire.INSIDE, endpoint=endpoint, begins_here=False)
            far = [other for other in keys if other != name and not spec.plain_besides(hosts[name], hosts[other])]
            network.set_keys((*(peer(other, name < other) for other in far), head))

        self._at_hosts(tell)
        self._here.set_peers([peer(name, True) for name in keys])
