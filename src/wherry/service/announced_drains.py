"""Keeps announced drains: has hosts drained when their time has come, until nothing is left to move.

Invariant: the announcement is a flag of the host that goes only when the host is drained and empty, or by a restore. So
a daemon that was killed in between, or was away at that time, drains when it is back.
"""

from __future__ import annotations

import time

from wherry.base.clock import now
from wherry.base.errors import WherryError
from wherry.cluster.lookup import DRAINED, announced
from wherry.model.records import NodeState
from wherry.service.context import ServiceContext
from wherry.service.host_commands import HostCommands, set_announced
from wherry.service.periodic import PeriodicTask

_EVERY = 1.0
_SOON = 60.0
_AGAIN = 30.0
"""Seconds until a drain that moved not all, or was refused, is tried again."""


class AnnouncedDrains(PeriodicTask):
    """Looks once a second."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__("drains", _EVERY)
        self._context, self._commands = context, HostCommands(context)
        self._tried: dict[str, float] = {}
        self._told: dict[str, str] = {}
        """Why the latest drain of a host was refused, which is reported once."""

    def run_once(self) -> None:
        """Begins the drains whose time has come. Hosts whose time comes within a minute take no nodes from then on, so
        none goes from the first to the next."""
        store = self._context.store
        if self._context.managers is None:
            return
        flags = store.flags_of_hosts()
        coming = {host: one for host, set_ in flags.items() if (one := announced(set_))}
        due = {host: one.why for host, one in coming.items() if one.at <= now()}
        for host, one in coming.items() if due else ():
            if one.at <= now() + _SOON and DRAINED not in flags[host]:
                store.set_host_flag(host, DRAINED, True)
        for host, why in due.items():
            self._keep(host, why)
        for host in self._tried.keys() - due.keys():
            self._tried.pop(host)
            self._told.pop(host, None)

    def _keep(self, host: str, why: str) -> None:
        store = self._context.store
        if host in self._tried and host not in self._told and self._is_empty(host):
            set_announced(store, host, None)
            store.add_event("host.drained", host, f"no node is on {host} any more ({why})")
            return
        if time.monotonic() - self._tried.get(host, -_AGAIN) < _AGAIN:
            return
        try:
            self._commands.drain(host, why, partly=True)
        except WherryError as error:  # it is busy, silent, or in use by a component
            if self._told.get(host) != error.why:
                self._told[host] = error.why
                text = f"{host} cannot be drained yet: {error}"
                store.add_event("host.drain-delayed", host, text)
        else:
            self._told.pop(host, None)
        self._tried[host] = time.monotonic()

    def _is_empty(self, host: str) -> bool:
        """Whether the host has no nodes, and none is on its way to or from there."""
        store = self._context.store
        if any(node.host == host and node.state is not NodeState.LOST for node in store.nodes()):
            return False
        return not any(host in (move.source, move.destination) for move in store.moves(unfinished=True))
