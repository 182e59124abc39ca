"""Has hosts join and leave as Slurm allocates them, has them drained before an allocation ends, and asks for the next.

Invariants: Slurm's answer is acted upon only when it is complete, so while its daemon is silent nothing changes. A
host's flag of having joined is set before the host joins, and goes after it has left; a daemon that was killed in
between has the host join or leave again. Allocations are found by Slurm's own data, never by rows.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable

from wherry.base.clock import now
from wherry.base.errors import LostContact, WherryError
from wherry.base.moments import moment
from wherry.cluster.lookup import ALLOCATED, DRAINED, DRAINED_NODE, LOST, Announced, announced
from wherry.cluster.placements import network_of_cluster
from wherry.fabric.allocations import Allocations
from wherry.model.allocations import Allocation
from wherry.model.records import NodeState
from wherry.schedule.allocations import Steps, Terms, next_steps
from wherry.service.context import Managers, ServiceContext
from wherry.service.host_commands import HostCommands, set_announced
from wherry.service.periodic import PeriodicTask

_EVERY = 5.0
_TROUBLES_EVERY = 15.0
_AGAIN = 60.0
"""Seconds until a step that Slurm or a host refused is tried again."""
_ENDING = "Slurm's job "
"""How the reasons of drains begin that follow from an allocation."""
_SLACK = 90.0
"""Seconds by which an announced drain may differ from its time by the allocation: limits are whole minutes."""


class AllocationKeeper(PeriodicTask):
    """Looks every five seconds; does nothing on other fabrics."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__("allocations", _EVERY)
        self._context, self._commands = context, HostCommands(context)
        self._told: dict[str, str] = {}
        """The latest trouble with each thing, which is reported once."""
        self._later: dict[str, float] = {}
        """When a refused step is tried again."""
        self._connected: frozenset[str] | None = None
        """The hosts that are joined by the networks of clusters; None: not known."""
        self._troubles_at = 0.0
        self._silent = list[str]()
        """Hosts that are to be declared lost, as their lease will say that nothing runs there."""

    def run_once(self) -> None:
        """One look, and the steps that follow from it."""
        managers = self._context.managers
        if managers is None or managers.allocations is None or not managers.fabric.is_up():
            self._connected = None
            return
        allocations = managers.allocations
        found = self._look(managers, allocations)
        admit = self._steps(allocations, found).admit if found is not None else {}
        if joining := [host for host in admit if self._due(f"join {host}")]:
            allocations.prepare(joining)  # not under the lock, as it takes long
            found = self._look(managers, allocations)
        if found is None:
            return
        with self._context.keeping_fabric(managers) as kept:  # nobody joins a fabric that is being removed
            if kept and managers.fabric.is_up():
                self._follow(managers, allocations, found)
        silent, self._silent = self._silent, []
        for host in silent:
            with contextlib.suppress(WherryError):  # that is under way
                self._commands.declare_lost(host)

    def _look(self, managers: Managers, allocations: Allocations) -> list[Allocation] | None:
        """The allocations; None when Slurm does not list them."""
        try:
            found = allocations.look()
        except WherryError as error:
            self._tell("slurm", managers.fabric.spec.name, f"Slurm does not report its allocations: {error}")
            return None
        self._told.pop("slurm", None)
        return found

    def _steps(self, allocations: Allocations, found: list[Allocation]) -> Steps:
        store = self._context.store
        flags = store.flags_of_hosts()
        present = {host for host, set_ in flags.items() if ALLOCATED in set_}
        drained = {host for host, set_ in flags.items() if DRAINED in set_}
        with_nodes = {node.host for node in store.nodes() if node.state is not NodeState.LOST}
        with_nodes |= {host for move in store.moves(unfinished=True) for host in (move.source, move.destination)}
        terms = Terms(allocations.asks, allocations.leave, allocations.early)
        return next_steps(found, present, with_nodes & present, drained, terms)

    def _follow(self, managers: Managers, allocations: Allocations, found: list[Allocation]) -> None:
        steps = self._steps(allocations, found)
        if steps.ask:
            name = managers.fabric.spec.name
            self._attempt("ask", name, "no further allocation", lambda: self._ask(allocations))
        for host, one in steps.admit.items():
            self._attempt(
                f"join {host}", host, "it cannot join", functools.partial(self._admit, allocations, host, one)
            )
        for host, ended in steps.dismiss.items():
            what = f"its allocation is over, and it cannot leave (wherry host lost {host}, if it will not answer again)"
            leave = functools.partial(self._dismiss, managers, allocations, host, ended)
            self._attempt(f"leave {host}", host, what, leave)
        at = now()
        for host, (seconds, one) in steps.drain.items():
            self._announce(host, at + seconds, one)
        self._connect(allocations)
        self._look_at_troubles(allocations)
        for one in found:
            if one.why:  # reasons come and go: each is reported once
                text = f"Slurm's job {one.id} waits for nodes ({one.why})"
                self._tell(f"wait {one.id} {one.why}", str(one.id), text, "allocation.waits")
            if one.id in steps.release and not any(self._is_present(host) for host in one.hosts):  # one cannot leave
                release = functools.partial(self._release, allocations, one.id)
                self._attempt(f"release {one.id}", str(one.id), "it is not given back", release)

    def _is_present(self, host: str) -> bool:
        return self._context.store.host_flag(host, ALLOCATED)

    def _ask(self, allocations: Allocations) -> None:
        id = allocations.ask()
        text = f"Slurm's job {id} is asked for, as the allocation before it is about to end"
        self._context.store.add_event("allocation.asked", str(id), text)

    def _release(self, allocations: Allocations, id: int) -> None:
        allocations.release(id)
        self._context.store.add_event("allocation.released", str(id), f"Slurm's job {id} is given back: its hosts left")

    def _admit(self, allocations: Allocations, host: str, one: Allocation) -> None:
        store = self._context.store
        store.set_host_flag(host, ALLOCATED, True)
        try:
            allocations.admit(host)
        except Exception:
            store.set_host_flag(host, ALLOCATED, False)
            raise
        self._commands.end_loss(host)
        self._connected = None
        end = "has no time limit" if one.left is None else f"ends at {moment(now() + one.left)}"
        store.add_event("host.joined", host, f"{host} joins with Slurm's job {one.id}, which {end}")

    def _dismiss(self, managers: Managers, allocations: Allocations, host: str, ended: bool) -> None:
        """`ended`: it may have nodes, and belongs to somebody else now. They are removed before they count as lost, so
        no other copy is made while they run; moves from and to it end as after `host lost`. Where the host is silent
        that takes its lease, or an administrator."""
        store = self._context.store
        nodes = sorted(node.name for node in store.nodes() if node.host == host and node.state is not NodeState.LOST)
        moving = any(host in (move.source, move.destination) for move in store.moves(unfinished=True))
        text = f"{host} leaves: its allocation {'has ended' if ended else 'is about to end, and no node is there'}"
        store.set_host_flag(host, DRAINED, True)
        try:
            allocations.dismiss(host, empty=not (nodes or moving) or store.host_flag(host, LOST))
        except LostContact:
            if managers.fabric.spec.lease is not None:
                self._silent.append(host)
            raise
        if nodes or moving:
            self._commands.note_loss(host)
        if nodes:
            text += f"; {', '.join(nodes)} had not moved away, so these are lost, and jobs with ranks there end"
        for flag in store.host_flags(host):
            if flag == DRAINED or flag.startswith(DRAINED_NODE):
                store.set_host_flag(host, flag, False)
        set_announced(store, host, None)
        store.set_host_flag(host, ALLOCATED, False)
        self._connected = None
        self._told.pop(f"trouble {host}", None)
        store.add_event("host.left", host, text)

    def _announce(self, host: str, at: float, one: Allocation) -> None:
        """Has the host be drained at this time, unless it is, or has been announced for about then, or for earlier."""
        store = self._context.store
        flags = store.host_flags(host)
        coming = announced(flags)
        why = f"{_ENDING}{one.id} ends"
        if DRAINED in flags or ALLOCATED not in flags:
            return
        if coming and (abs(coming.at - at) < _SLACK or coming.at < at and not coming.why.startswith(_ENDING)):
            return
        self._commands.note_announced(host, Announced(at, why))

    def _connect(self, allocations: Allocations) -> None:
        """Joins the hosts by the networks of clusters, after some have come or gone."""
        store, fabric = self._context.store, self._context.require_managers().fabric
        here = frozenset(host.name for host in fabric.spec.hosts if self._is_present(host.name))
        if here == self._connected:
            return

        def connect() -> None:
            allocations.connect(lambda: [network_of_cluster(cluster) for cluster in store.clusters()])
            self._connected = here

        self._attempt("connect", fabric.spec.name, "clusters' networks do not reach all hosts", connect)

    def _look_at_troubles(self, allocations: Allocations) -> None:
        """Has hosts drained that Slurm lists as failed, or as to be left."""
        if time.monotonic() < self._troubles_at:
            return
        self._troubles_at = time.monotonic() + _TROUBLES_EVERY
        try:
            found = allocations.troubles()
        except WherryError as error:
            self._log.info("%s", error)
            return
        store = self._context.store
        for host, trouble in found.items():
            new = self._tell(f"trouble {host}", host, f"Slurm reports of {host}: {trouble}")
            if new and DRAINED not in store.host_flags(host):
                self._commands.note_announced(host, Announced(now(), f"Slurm: {trouble}"))
        for key in [key for key in self._told if key.startswith("trouble ") and key[8:] not in found]:
            del self._told[key]

    def _attempt(self, key: str, target: str, what: str, act: Callable[[], None]) -> None:
        """An error is reported, and the same step is tried again a minute later."""
        if not self._due(key):
            return
        try:
            act()
        except WherryError as error:
            self._later[key] = time.monotonic() + _AGAIN
            self._tell(key, target, f"{what}: {error}")
        else:
            self._later.pop(key, None)
            self._told.pop(key, None)

    def _due(self, key: str) -> bool:
        """False while a refused step still waits to be tried again."""
        return time.monotonic() >= self._later.get(key, 0.0)

    def _tell(self, key: str, target: str, text: str, kind: str = "allocation.trouble") -> bool:
        """Writes the event, unless its text is the latest one of this key. Returns whether it was written."""
        if self._told.get(key) == text:
            return False
        self._told[key] = text
        self._context.store.add_event(kind, target, text)
        return True
