"""Real hosts for containers, reached by SSH: the agent of each makes the ends of clusters' networks there.

    namespace `gateway`                             this machine              the hosts (see `wire_host`)
    head ── pN.254 ── cN (bridge) ── xN ~~ VXLAN ~~ its address ══ wire ══ ~~ xN ── cN ── pN.INDEX ── a node

This machine has only the heads of clusters, where launchers run, and reaches nodes from there. Invariant: every link
that this driver makes here is in a namespace of the instance; objects at hosts are made and removed by their agents.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel, TypeAdapter

from wherry.base.atomic_write import write_atomically, write_once
from wherry.base.errors import Code, LostContact, Refused, WherryError
from wherry.base.paths import Instance
from wherry.fabric import encrypted_wire, named_netns, netns_links, path_mtu
from wherry.fabric.host_counters import FrameCounter, HostCounters, HostUse
from wherry.fabric.host_network import HEAD_PORT, MTU, HostHold, HostNetwork, headers
from wherry.fabric.netns import check_names
from wherry.fabric.netns_links import MACHINE, NetnsLinks, Remote
from wherry.fabric.netns_names import bridge_of, tunnel_of
from wherry.fabric.protocol import Hold, HoldReport, Repair
from wherry.fabric.real_hosts import GATEWAY, RealHostsFabric
from wherry.fabric.wire_ends import WireEnds
from wherry.fabric.wire_host import source_address, wire_tunnel
from wherry.hostlink.entrance import NETWORK, PROTOCOL, HostSetup
from wherry.hostlink.link import HostLink
from wherry.hostlink.remote import Links, remote
from wherry.model.network import HEAD_INDEX, ClusterNetwork, Port
from wherry.model.records import HostFacts
from wherry.model.spec.fabric import FabricSpec

Result = TypeVar("Result")
_REMOVALS = dict.fromkeys(("remove", "network_down", "port_down", "port_unplug", "drop", "close"))
"""Steps that a host that is declared lost need not do: all of ours is removed when it is restored."""
_ANEW = frozenset(("drop", "read", "close"))
"""Methods of holds and counters that need nothing of earlier steps."""
_LOOK_EVERY = 5.0
"""Seconds between two looks at the ends of the encrypted wire."""
PARALLEL_HOSTS = 32
"""Most hosts of which something is asked at the same time."""


class SshLinks(Links, Protocol):
    """The connections to the hosts' agents."""

    def answers(self, host: str) -> bool:
        """True when the host's agent works for this daemon."""

    stood: list[str]
    """Hosts whose nodes were frozen for want of a lease, and run again."""

    def reach(self, host: str) -> HostLink:
        """As `link`, also for a host that is declared lost."""

    def lose(self, host: str) -> None:
        """Declares a host lost. Returns when no agent may act there any more."""

    def end(self, host: str) -> None:
        """Ends the connection to a host."""

    def close(self) -> None:
        """Ends all connections."""


class SshHostsFabric(RealHostsFabric):
    """The fabric of one instance on hosts by SSH."""

    driver = "ssh"

    def __init__(self, spec: FabricSpec, instance: Instance, links: SshLinks) -> None:
        super().__init__(spec, instance)
        self.connections = links
        """Shared with the node driver, so that fabric and driver agree on which hosts answer."""
        self._clearing = threading.Lock()
        """Held while a lost host's objects are removed."""
        self._joining = threading.Lock()
        """Held while a network gets the hosts of now, so that an earlier call cannot set those of before."""
        self._cleared = set[str]()
        """Lost hosts that have nothing of ours any more."""
        self._clearers: dict[str, threading.Thread] = {}
        self._repairs: list[Repair] = []
        self._ends = WireEnds(instance, self._gateway, self._at_named_hosts)
        self._repairer = threading.Thread()
        self._looked = -_LOOK_EVERY

    def up(self) -> None:
        check(self.spec)
        self._remember()
        self._at_hosts(lambda network: network.make())
        self._find_mtu()
        for host in self._present():
            self._require_runtime(host)
        self._make_gateway()
        self._encrypt()

    def _require_runtime(self, host: str) -> None:
        if not self.facts(host).runtime:
            what, remedy = f"host {host} can make no containers", f"wherry host add {self._host(host).uri} --install"
            raise Refused(Code.INCOMPATIBLE_HOST, what, "neither runc nor crun is installed there", remedy)

    def _find_mtu(self) -> None:
        """Finds the largest packet that all ways between hosts carry, and takes it for clusters until the fabric is
        down, as nodes keep theirs. Refused when a host that is added later needs smaller ones."""
        known = clusters_mtu(self.spec, self._instance) or (MTU if self.is_up() else 0)
        more = headers(self.spec.encrypted)
        present = self._present()
        wires = {self._host(name).wire for name in present}
        head = source_address(self.spec.hosts[0].wire)
        link = netns_links.inside(MACHINE, lambda ip: ip.mtu_of(head))
        found = {"this machine": path_mtu.largest(wires, link or path_mtu.USUAL) - more}

        def ask(network: HostNetwork, name: str) -> None:
            far, near = ends(self.spec, name, present)
            found[name] = network.wire_mtu(tuple(sorted({*far, head} - {self._host(name).wire}))) - more
            if near:
                found[name] = min(found[name], network.wire_mtu(near) - headers(False))

        self._at_named_hosts(ask)
        name, least = min(found.items(), key=lambda each: each[1])
        if known > least:
            what, why = f"{name} cannot be in this fabric", f"packets of clusters there have at most {least} bytes"
            raise Refused(
                Code.UNSUPPORTED, what, f"{why}, and here {known}", "wherry fabric down; wherry fabric up FILE"
            )
        mtu = known or least
        write_atomically(_mtu_file(self._instance), str(mtu).encode(), 0o600, lasting=True)
        self._at_hosts(lambda network: network.set_mtu(mtu))

    def _encrypt(self) -> None:
        """Has all ends of the encrypted wire know each other's public keys, as they are now."""
        if self.spec.encrypted:
            self._ends.connect(self.spec, self._site_mtu(""))

    def _remember(self) -> None:
        remember(self._instance, self.spec)

    def _wires(self) -> list[str]:
        """The addresses of the hosts, on the network between them."""
        return [host.wire for host in self.spec.hosts]

    def down(self) -> None:
        self._ends.close()
        try:
            self._at_hosts(lambda network: network.remove())
        except WherryError as error:
            if self.is_up():  # else it was never made, perhaps for want of this host
                if isinstance(error, LostContact):
                    error.next = "repeat this when it answers; for a host that will not return: wherry host lost HOST"
                raise
        super().down()
        forget(self._instance)
        self.connections.close()

    def _ask_facts(self, host: str) -> HostFacts:
        return self._network(host).facts()

    def missing_files(self, host: str, paths: list[str]) -> list[str]:
        try:
            return self.unseen_files(host, paths)
        except LostContact:  # it has none for this caller
            return paths

    def unseen_files(self, host: str, paths: list[str]) -> list[str]:
        """As `missing_files`; LostContact when the host does not answer."""
        return list(self._network(host).missing_files(tuple(paths)))

    def counters(self, host: str, nodes: Sequence[str] = ()) -> HostCounters:
        return self._network(host).counters(tuple(nodes))

    def use(self, host: str, nodes: Sequence[str] = ()) -> HostUse:
        return self._network(host).use(tuple(nodes))

    def frame_counter(self, host: str) -> FrameCounter:
        return self._network(host).frame_counter()

    def reachable(self, host: str) -> bool:
        return self.connections.answers(self._host(host).name)

    def set_lost(self, host: str, lost: bool) -> None:
        """A lost host's objects of ours are removed when it is restored: its nodes run elsewhere by then. Returns when
        no request to it can be carried out there any more."""
        name = self._host(host).name
        if lost:
            self.connections.lose(name)
        elif name in self.connections.lost:
            with self._clearing:
                self._remove_all(name)
                self.connections.lost.discard(name)
                try:
                    self._network(name).make()
                    if self.is_up():
                        self._encrypt()
                except Exception:
                    self.connections.lost.add(name)
                    raise
                self._cleared.discard(name)

    def repair(self) -> list[Repair]:
        """Removes all that lost hosts have, as soon as they answer: before anybody restores them."""
        repairs = list[Repair]()
        while self._repairs:
            repairs.append(self._repairs.pop(0))
        while self.connections.stood:
            host = self.connections.stood.pop()
            text = f"the nodes of {host} were stopped, as it had no lease any more; they run again"
            repairs.append(Repair(text=text))
        for host in self.connections.lost - self._cleared:
            if host not in self._clearers or not self._clearers[host].is_alive():
                self._clearers[host] = threading.Thread(target=self._clear, args=(host,), name="clear", daemon=True)
                self._clearers[host].start()
        if self.spec.encrypted and self._looked + _LOOK_EVERY <= time.monotonic() and not self._repairer.is_alive():
            self._looked = time.monotonic()
            self._repairer = threading.Thread(target=self._repair_wire, name="repair", daemon=True)
            self._repairer.start()
        return repairs

    def _repair_wire(self) -> None:
        if self.is_up():
            self._repairs += self._ends.repair(self.spec, self._site_mtu(""))

    def _clear(self, host: str) -> None:
        with contextlib.suppress(WherryError):  # it is still silent
            self.connections.reach(host)
            with self._clearing:
                if host in self.connections.lost:
                    self._remove_all(host)
                    text = f"{host}, which is declared lost, answers: everything of this instance there is removed"
                    self._repairs.append(Repair(text=text))

    def _remove_all(self, host: str) -> None:
        """Removes the objects of a host that is still declared lost, so that nothing of it runs again before."""
        remote(_Reached(self.connections), host, NETWORK, HostNetwork).remove()
        self.connections.end(host)
        self._cleared.add(host)

    def host_address(self, host: str) -> str:
        return self._host(host).wire

    def network_up(self, network: ClusterNetwork) -> None:
        self._encrypt()
        self._at_hosts(lambda host: host.network_up(network))
        bridge, tunnel, gateway = bridge_of(network), tunnel_of(network.number), named_netns.path(self._gateway)
        mtu = self._site_mtu("")
        netns_links.inside(gateway, lambda ip: ip.bridge(bridge, mtu))
        vni = (first_vni(identity(self._instance)) + network.number) % (1 << 24)
        if self.spec.encrypted:
            source, below = encrypted_wire.INSIDE, gateway
        else:
            source, below = source_address(self.spec.hosts[0].wire), MACHINE
        wire_tunnel(gateway, tunnel, vni, source, HEAD_PORT, mtu, learns=False, below=below)

        def join(ip: NetnsLinks) -> None:
            ip.flood_only(tunnel, [Remote(wire, netns_links.VXLAN_PORT) for wire in self._wires()])
            ip.up(tunnel, bridge)

        with self._joining:
            netns_links.inside(gateway, join)

    def network_down(self, network: ClusterNetwork) -> None:
        self._at_hosts(lambda host: host.network_down(network))
        if named_netns.exists(self._gateway):
            for name in (tunnel_of(network.number), bridge_of(network)):
                self._switch(GATEWAY).delete(name)

    def port_up(self, port: Port) -> str:
        if _is_head(port):
            return super().port_up(port)
        self._network(port.host).port_up(port)
        return self.port_netns(port)

    def port_netns(self, port: Port) -> str:
        """The head's, from which a node is reached: its own is at its host."""
        return named_netns.path(self._head(port))

    def port_plug(self, port: Port) -> None:
        super().port_plug(port) if _is_head(port) else self._network(port.host).port_plug(port)

    def port_unplug(self, port: Port) -> None:
        super().port_unplug(port) if _is_head(port) else self._network(port.host).port_unplug(port)

    def port_down(self, port: Port) -> None:
        if _is_head(port):
            super().port_down(port)
            named_netns.remove(self._head(port))
        else:
            self._network(port.host).port_down(port)

    def hold(self, port: Port) -> Hold:  # type: ignore[override]
        return _RemoteHold(self._network(port.host).hold(port), self._network)

    def _network(self, host: str) -> HostNetwork:
        return remote(self.connections, self._host(host).name, NETWORK, HostNetwork, _REMOVALS, _ANEW)

    def _present(self) -> list[str]:
        return [host.name for host in self.spec.hosts if host.name not in self.connections.lost]

    def _at_hosts(self, act: Callable[[HostNetwork], Result]) -> None:
        """Does it at all hosts at the same time. The first error, once all have ended."""
        self._at_named_hosts(lambda network, _: act(network))

    def _at_named_hosts(self, act: Callable[[HostNetwork, str], Result]) -> None:
        """The same, with the names of hosts."""
        with ThreadPoolExecutor(PARALLEL_HOSTS, thread_name_prefix="hosts") as pool:
            done = [pool.submit(act, self._network(host), host) for host in self._present()]
        for each in done:
            each.result()

    def _site_mtu(self, site: str) -> int:
        return clusters_mtu(self.spec, self._instance) or MTU

    def _far_mtu(self) -> int:
        return self._site_mtu("")

    def _head(self, port: Port) -> str:
        return self._names.name(f"{GATEWAY}-{port.network.number}")


class _Reached:
    """The connections to hosts, whether or not they are declared lost."""

    def __init__(self, connections: SshLinks) -> None:
        self.lost = set[str]()
        self.link = connections.reach


class Noted(BaseModel):
    """A host as it is noted."""

    uri: str
    setup: HostSetup


_NOTES = TypeAdapter(dict[str, Noted])


class _RemoteHold:
    """A hold at a host."""

    def __init__(self, hold: HostHold, network: Callable[[str], HostNetwork]) -> None:
        self._hold, self._network, self._dropped = hold, network, False

    def divert(self) -> None:
        self._hold.divert()

    def release(self) -> HoldReport:
        return self._hold.release()

    def first_sent(self, timeout: float) -> float | None:
        try:
            ago = self._hold.since_first_sent(timeout)
        except LostContact:  # the time is only reported
            return None
        return None if ago is None else time.monotonic() - ago

    def problem(self) -> str:
        return self._hold.problem()

    def give_back(self, source: Port) -> HoldReport:
        """The frames are at another host than the port: TCP sends them again."""
        self.drop()
        self._network(source.host).port_plug(source)
        return HoldReport()

    def drop(self) -> None:
        if not self._dropped:  # else it would be made anew there
            self._hold.drop()
            self._dropped = True


def _is_head(port: Port) -> bool:
    return port.index == HEAD_INDEX


def check(spec: FabricSpec) -> None:
    """Refuses ambiguous host names. Changes nothing."""
    check_names(spec)
    if any(host.name == GATEWAY for host in spec.hosts):
        why = "the network of the clusters' heads has it"
        raise Refused(Code.UNSUPPORTED, f"no host can be named {GATEWAY}", why, "rename the host")


def setup_of(spec: FabricSpec, instance: Instance, host: str, present: Collection[str] | None = None) -> HostSetup:
    """The setup that the agent of a host gets first. With `present`, of the other hosts only these are its peers."""
    own = next(each for each in spec.hosts if each.name == host)
    peers, near = ends(spec, host, present)
    word = identity(instance)
    return HostSetup(
        protocol=PROTOCOL, instance=instance.name, identity=word, name=host, cores=own.cores, memory=own.memory,
        speed=own.speed, address=own.wire, peers=peers, near=near,
        head=source_address(own.wire), vni=first_vni(word), pool=spec.pool,
        lease=spec.lease or 0.0, mtu=clusters_mtu(spec, instance), encrypted=spec.encrypted,
    )  # fmt: skip


def ends(
    spec: FabricSpec, host: str, present: Collection[str] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The addresses of the other hosts (with `present`, only of these), as a host's `peers`, and as those `near` it."""
    own = next(each for each in spec.hosts if each.name == host)
    others = [each for each in spec.hosts if each.name != host and (present is None or each.name in present)]
    near = tuple(each.wire for each in others if spec.plain_besides(own, each))
    return tuple(each.wire for each in others if each.wire not in near), near


def clusters_mtu(spec: FabricSpec, instance: Instance) -> int:
    """The largest packet of clusters in bytes; 0 before it is found. Slurm's hosts, which come later, have MTU."""
    if spec.driver == "slurm":
        return path_mtu.USUAL - headers(spec.encrypted)
    file = _mtu_file(instance)
    return int(file.read_text()) if file.exists() else 0


def _mtu_file(instance: Instance) -> Path:
    return instance.state / "clusters-mtu"


def identity(instance: Instance) -> str:
    """The random word by which hosts recognize this instance's daemon; made when there is none."""
    return write_once(identity_file(instance), secrets.token_hex(16).encode()).decode()


def identity_file(instance: Instance) -> Path:
    """The file with the instance's identity."""
    return instance.state / "identity"


def first_vni(word: str) -> int:
    """Where the VXLAN network identifiers of an instance begin, so that two instances on one wire seldom meet."""
    return int(word[:6], 16)


def remember(instance: Instance, spec: FabricSpec, present: Collection[str] | None = None) -> None:
    """Notes the hosts (with `present`, only these), so that the objects there can be removed without the database."""
    hosts = [host for host in spec.hosts if present is None or host.name in present]
    known = {host.name: Noted(uri=host.uri, setup=setup_of(spec, instance, host.name, present)) for host in hosts}
    write_atomically(notes(instance), _NOTES.dump_json(known), 0o600, lasting=True)


def noted(instance: Instance) -> dict[str, Noted]:
    """The hosts that the instance uses, by name."""
    path = notes(instance)
    return _NOTES.validate_json(path.read_bytes()) if path.exists() else {}


def forget(instance: Instance) -> None:
    """Removes the note, and the size of packets."""
    for file in (_mtu_file(instance), notes(instance)):
        file.unlink(missing_ok=True)


def sweep(instance: Instance, links: Links) -> dict[str, str]:
    """Removes all that the instance has at its hosts, by the note alone, as far as they answer. The others stay noted;
    returns why, by host."""
    known = noted(instance)
    if not known:
        return {}
    with ThreadPoolExecutor(PARALLEL_HOSTS, thread_name_prefix="hosts") as pool:
        done = {host: pool.submit(remote(links, host, NETWORK, HostNetwork).remove) for host in known}
    errors = {host: error for host, each in done.items() if (error := each.exception())}
    if errors:
        left = {host: known[host] for host in errors}
        write_atomically(notes(instance), _NOTES.dump_json(left), 0o600, lasting=True)
    else:
        forget(instance)
    return {host: (isinstance(error, WherryError) and error.why) or str(error) for host, error in errors.items()}


def notes(instance: Instance) -> Path:
    """The file with the hosts that the instance uses."""
    return instance.state / "hosts-by-ssh"
