"""Hosts that are nodes of a Slurm cluster, reached by SSH while they are allocated. See docs/design/0031-slurm.md.

Invariant: a host of the fabric that is not present counts, for all else, as declared lost and without objects of this
instance: nothing is placed there, nothing waits for it, and it is contacted only to remove its objects.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wherry.base.atomic_write import write_once
from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import Instance
from wherry.fabric.slurm import Slurm
from wherry.fabric.slurm_text import SlurmJob, SlurmNode
from wherry.fabric.ssh_hosts import PARALLEL_HOSTS, SshHostsFabric, SshLinks, ends, identity, noted, remember
from wherry.model.allocations import Allocation
from wherry.model.network import ClusterNetwork
from wherry.model.records import Host
from wherry.model.spec.base import MOST_HOSTS, NAME
from wherry.model.spec.fabric import FabricSpec, HostSpec
from wherry.model.spec.slurm import SlurmSpec

_NOTE = "slurm"
_ENDS, _POLL = 60.0, 0.5
"""Seconds in which cancelled jobs have to be gone, and between two looks."""


class SlurmHostsFabric(SshHostsFabric):
    """The fabric of one instance on hosts that Slurm allocates. It is an `Allocations`."""

    driver = "slurm"

    def __init__(self, spec: FabricSpec, instance: Instance, links: SshLinks, slurm: Slurm, present: set[str]) -> None:
        super().__init__(spec, instance, links)
        assert spec.slurm is not None
        self._slurm, self._wants = slurm, spec.slurm
        self._hosts_of: dict[str, tuple[str, ...]] = {}
        """Of Slurm's short forms of names, as `h[1-3]`."""
        self.present = present
        """Shared with the setup that an agent gets first, of which these hosts are the peers."""
        self.asks, self.leave, self.early = self._wants.asks, self._wants.leave, self._wants.early
        self.restore(present)

    def restore(self, hosts: Collection[str]) -> None:
        declared = {host.name for host in self.spec.hosts}
        there = declared.intersection(hosts)
        self.present.clear()
        self.present.update(there)
        away = declared - self.present
        self.connections.lost |= away
        self.connections.lost -= self.present
        self._cleared |= away - noted(self._instance).keys()

    def hosts(self) -> list[Host]:
        return [
            host if host.name in self.present else host.model_copy(update={"down": True, "absent": True})
            for host in super().hosts()
        ]

    def up(self) -> None:
        write_once(self._instance.state / _NOTE, self._slurm.name.encode())  # before there is an allocation
        super().up()
        if self.asks and not any(job.runs or job.waits for job in self._slurm.own()):
            self.ask()

    def _find_mtu(self) -> None:
        """Does nothing: hosts come later, and clusters have the usual packets."""

    def down(self) -> None:
        super().down()
        self.present.clear()
        end_own(self._slurm)
        (self._instance.state / _NOTE).unlink(missing_ok=True)

    def look(self) -> list[Allocation]:
        if self.asks:
            jobs = self._slurm.own()
        else:
            found = self._slurm.job(self._wants.job or 0)
            jobs = [found] if found else []
        return [self._allocation(job) for job in jobs if job.runs or job.waits]

    def _allocation(self, job: SlurmJob) -> Allocation:
        if not job.runs:
            return Allocation(job.id, False, why=job.reason)
        if job.nodes not in self._hosts_of:
            self._hosts_of = {job.nodes: tuple(self._slurm.names(job.nodes)), **dict([*self._hosts_of.items()][:15])}
        declared = {host.name for host in self.spec.hosts}
        hosts = tuple(name for name in self._hosts_of[job.nodes] if name in declared)
        return Allocation(job.id, True, hosts, job.left)

    def troubles(self) -> dict[str, str]:
        here = sorted(self.present)
        found = self._slurm.nodes(here) if here else []
        return {node.name: node.trouble for node in found if node.name in here and node.trouble}

    def ask(self) -> int:
        declared, partition = {host.name for host in self.spec.hosts}, self._wants.partition
        may_be_in = (node for node in self._slurm.nodes() if partition is None or partition in node.partitions)
        return self._slurm.ask(self._wants, [node.name for node in may_be_in if node.name not in declared])

    def release(self, id: int) -> None:
        self._slurm.cancel(id)

    def prepare(self, hosts: Collection[str]) -> None:
        def reach(host: str) -> None:
            with contextlib.suppress(WherryError):  # `admit` reports it
                self.connections.reach(host)

        with ThreadPoolExecutor(PARALLEL_HOSTS, thread_name_prefix="hosts") as pool:
            list(pool.map(reach, hosts))

    def admit(self, host: str) -> None:
        self.present.add(host)
        try:
            self._remember()
            self.set_lost(host, False)
            self._require_runtime(host)
        except Exception:
            self.present.discard(host)
            self.connections.lost.add(host)
            raise

    def set_lost(self, host: str, lost: bool) -> None:
        if not lost and host not in self.present:
            what, why = f"host {host} cannot be restored", "Slurm has not allocated it"
            raise Refused(Code.WRONG_STATE, what, why, "wherry host list")
        super().set_lost(host, lost)

    def dismiss(self, host: str, empty: bool) -> None:
        if not empty:
            with self._clearing:
                self._remove_all(host)  # before it counts as lost, and its nodes may be made elsewhere
        self.present.discard(host)
        self.connections.lost.add(host)
        self._facts.pop(host, None)  # the machine may be another one when it is back
        self._cleared.discard(host)
        with contextlib.suppress(WherryError), self._clearing:  # else `repair` does it, as soon as it answers
            self.connections.end(host)  # for callers that were about to make something there
            self._remove_all(host)
        self._remember()

    def connect(self, networks: Callable[[], Sequence[ClusterNetwork]]) -> None:
        for host in sorted(self.present):
            with contextlib.suppress(WherryError):  # a silent host has a new agent later, which gets them
                self._network(host).set_peers(*ends(self.spec, host, self.present))
        for network in networks():  # only now: networks that were made before by other peers are among them
            self.network_up(network)

    def _wires(self) -> list[str]:
        return [host.wire for host in self.spec.hosts if host.name in self.present]

    def _remember(self) -> None:
        """Notes the hosts that may have something of ours: the present ones, and those not cleared yet."""
        uncleared = self.connections.lost - self._cleared
        remember(self._instance, self.spec, {*self.present, *uncleared})


def slurm_of(instance: Instance) -> Slurm:
    """Slurm as this instance uses it."""
    return Slurm(instance, identity(instance))


def expanded(spec: FabricSpec, slurm: Slurm, before: FabricSpec | None) -> FabricSpec:
    """The fabric with its hosts: those of the file, else the nodes that may be allocated, as Slurm describes them now,
    or did when the same file was used before. Refused, Failed."""
    wants = spec.slurm
    assert wants is not None
    if not wants.asks and wants.job is None:
        what, why = "the fabric file names no allocation", "it has neither nodes and time, nor job, of slurm:"
        raise Refused(Code.INVALID_FILE, what, why, "write slurm: {nodes: 4, time: 8h}, or use it in an allocation")
    if not spec.hosts and before is not None and before.model_copy(update={"hosts": ()}) == spec:
        return before
    hosts = spec.hosts or tuple(_host(node, wants, spec.sites[0].name) for node in _candidates(slurm, wants))
    if len({host.wire for host in hosts}) < len(hosts):
        what, why = "Slurm's nodes cannot be hosts", "two of them have the same address"
        raise Refused(Code.UNSUPPORTED, what, why, "scontrol show node")
    if wants.nodes and wants.nodes > len(hosts):  # Slurm would have it wait for ever
        what, why = f"Slurm gives no allocation of {wants.nodes} nodes", f"only {len(hosts)} may be in one"
        raise Refused(Code.NO_CAPACITY, what, why, "sinfo")
    return spec.model_copy(update={"hosts": hosts})


def _candidates(slurm: Slurm, wants: SlurmSpec) -> list[SlurmNode]:
    nodes = slurm.nodes()
    if wants.job is not None:
        job = slurm.job(wants.job)
        if job is None or not job.runs:
            why = "it has ended" if job is None else f"it is {job.state}"
            raise Refused(Code.WRONG_STATE, f"Slurm's job {wants.job} has no nodes", why, "squeue --me")
        names: Collection[str] = slurm.names(job.nodes)
        found = [node for node in nodes if node.name in names]
    else:
        found = [node for node in nodes if wants.partition is None or wants.partition in node.partitions]
    if not found:
        where = f"partition {wants.partition}" if wants.partition else "this cluster"
        others = sorted({name for node in nodes for name in node.partitions})
        why = f"its partitions are {', '.join(others)}" if others else "it has no partitions with nodes"
        raise Refused(Code.NOT_FOUND, f"Slurm has no nodes in {where}", why, "sinfo")
    if len(found) > MOST_HOSTS:
        what, why = f"{len(found)} nodes may be allocated", f"a fabric has at most {MOST_HOSTS} hosts"
        raise Refused(Code.UNSUPPORTED, what, why, "name a smaller partition, or list hosts: in the fabric file")
    return found


def _host(node: SlurmNode, wants: SlurmSpec, site: str) -> HostSpec:
    remedy = "list hosts: in the fabric file, with the names that Slurm gives them"
    if not NAME.fullmatch(node.name):
        why = "a host is named by small letters, digits and single hyphens"
        raise Refused(Code.UNSUPPORTED, f"node {node.name[:40]!r} of Slurm cannot be a host", why, remedy)
    try:
        address = socket.getaddrinfo(node.address, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        uri = f"ssh://{wants.user}@{address}" + ("" if wants.port == 22 else f":{wants.port}")
        size = {"cores": node.cpus, "memory": f"{node.memory >> 20}MiB"}
        return HostSpec.model_validate({"name": node.name, "site": site, "uri": uri, **size})
    except (OSError, UnicodeError, ValueError) as error:
        what = f"node {node.name} of Slurm cannot be a host"
        raise Refused(Code.UNSUPPORTED, what, f"{node.address!r}: {error}", remedy) from None


def end_own(slurm: Slurm, sleep: Callable[[float], None] = time.sleep) -> None:
    """Cancels all that this instance asked for, and waits until it is gone. Failed."""
    deadline = time.monotonic() + _ENDS
    while jobs := [job for job in slurm.own() if job.runs or job.waits]:
        for job in jobs:
            slurm.cancel(job.id)
        if time.monotonic() > deadline:
            what = f"Slurm's job {jobs[0].id} does not end"
            raise Failed(Code.TIMED_OUT, what, f"it is {jobs[0].state}", f"scancel {jobs[0].id}")
        sleep(_POLL)


def sweep(instance: Instance) -> dict[str, str]:
    """Cancels the instance's allocations, by its note alone. Returns why something may be left."""
    if not note(instance).exists():
        return {}
    try:
        end_own(slurm_of(instance))
    except WherryError as error:
        return {"slurm": error.why or str(error)}
    note(instance).unlink(missing_ok=True)
    return {}


def used(instance: Instance) -> Mapping[str, str]:
    """The allocations that the instance may have, for messages: by `slurm`, the name of its jobs."""
    return {"slurm": f"jobs wherry-{instance.name}"} if note(instance).exists() else {}


def note(instance: Instance) -> Path:
    """The file that marks that the instance may have jobs of Slurm."""
    return instance.state / _NOTE
