"""Listens where nodes reach the daemon: at the head of each cluster that runs a job, in the cluster's own network.

Nobody but the nodes of that cluster is in that network. Invariants: a listener is there before a job's ranks start,
also after a restart of the daemon, and is closed before its network is removed; connections are bounded, for each
cluster and node too; a connection carries one request, and a client that does not finish it in time is cut off. Data
of nodes reaches no log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from wherry.base.errors import WherryError
from wherry.cluster.lookup import find_cluster
from wherry.job.inside import PORT
from wherry.node.netns_socket import in_netns
from wherry.service.context import ServiceContext
from wherry.service.inside_commands import InsideLimits
from wherry.service.periodic import PeriodicTask
from wherry.service.rest.inside import make_inside_app

CONNECTIONS, CONNECTIONS_OF_ONE, CONNECTIONS_OF_NODE = 160, 128, 64
"""Most open connections: of all clusters, of one, and of one node."""
REQUEST_SECONDS, ANSWER_SECONDS = 10.0, 90.0
"""How long a request may take to come, and all of a connection."""
_BACKLOG = 256
_HEAD = 8192
"""Bytes of a request's head."""
_POLL_INTERVAL = 1.0
KEPT = 120.0
"""Seconds for which a listener is kept after it was wanted last: a job may be about to start."""
_MUTE = logging.getLogger("wherry.inside.mute")
_MUTE.setLevel(logging.CRITICAL + 1)


class InsideProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 for peers that may be hostile; the state of a request has the listener's `cluster`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger, self.access_log = _MUTE, False
        self._ends: list[asyncio.TimerHandle] = []
        self.address = ""

    @property
    def cluster(self) -> str:
        """From whose network it came."""
        return str(self.app_state["cluster"])

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Closes a connection that is too many at once: the library asks again."""
        self.address = str((transport.get_extra_info("peername") or [""])[0])
        of_one = [one for one in self.connections if isinstance(one, InsideProtocol) and one.cluster == self.cluster]
        of_node = sum(one.address == self.address for one in of_one)
        if len(self.connections) >= CONNECTIONS or len(of_one) >= CONNECTIONS_OF_ONE or of_node >= CONNECTIONS_OF_NODE:
            transport.abort()
            return
        super().connection_made(transport)
        self._ends = [
            self.loop.call_later(REQUEST_SECONDS, self._end_if_incomplete),
            self.loop.call_later(ANSWER_SECONDS, transport.abort),
        ]

    def data_received(self, data: bytes) -> None:
        """Ignores data on a connection that was refused."""
        if self in self.connections:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to end."""
        for end in self._ends:
            end.cancel()
        if self in self.connections:
            super().connection_lost(exc)

    def _end_if_incomplete(self) -> None:
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()


@dataclass
class _Listener:
    """The listener of a cluster. `where`: its network namespace, which is another one when the head was made again;
    `wanted`: when a job of the cluster was seen, or about to start (monotonic)."""

    where: int
    server: asyncio.Server
    wanted: float


class InsideServer(PeriodicTask):
    """Opens and closes listeners as jobs come and go; their connections are served by an event loop of its own."""

    def __init__(self, context: ServiceContext, group: int | None) -> None:
        super().__init__("inside", _POLL_INTERVAL)
        self._context = context
        self._lock = threading.Lock()
        self._listeners: dict[str, _Listener] = {}
        self._told: dict[str, str] = {}
        """Why a cluster has no listener, as was logged."""
        self._state = ServerState()
        self._loop = asyncio.new_event_loop()
        self._config = uvicorn.Config(
            make_inside_app(context, InsideLimits(), group), http=InsideProtocol, ws="none", lifespan="off",
            log_config=None, access_log=False, proxy_headers=False, server_header=False, date_header=False,
            h11_max_incomplete_event_size=_HEAD,
        )  # fmt: skip

    def start(self) -> None:
        """Starts the thread that serves, and the thread that looks for jobs."""
        self._config.load()
        threading.Thread(target=self._loop.run_forever, name="inside-loop", daemon=True).start()
        self._context.open_inside, self._context.close_inside = self.open, self.close_one
        super().start()

    def run_once(self) -> None:
        """Opens and closes listeners as jobs need them."""
        before = time.monotonic() - KEPT
        for name in {job.cluster for job in self._context.store.jobs_under_way() if job.computes}:
            self.open(name, starting=False)
        with self._lock:
            for name in [name for name, one in self._listeners.items() if one.wanted < before]:
                self._close(name)

    def open(self, name: str, starting: bool = True) -> None:
        """Listens at the head of a cluster, if a job runs there or is `starting`; does nothing if it does already. A
        cluster whose network the daemon fails to enter has no listener: its jobs run all the same."""
        try:
            with self._lock:  # `down` ends the jobs, then waits for the lock and closes
                if starting or self._has_job(name):
                    self._open(name)
            self._told.pop(name, None)
        except (WherryError, OSError) as error:
            if self._told.get(name) != str(error):
                self._log.warning("nodes of %s cannot ask the daemon: %s", name, error)
                self._told[name] = str(error)

    def _has_job(self, name: str) -> bool:
        return any(job.computes and job.cluster == name for job in self._context.store.jobs_under_way())

    def _open(self, name: str) -> None:
        managers = self._context.require_managers()
        cluster = find_cluster(self._context.store, name)
        path = managers.fabric.port_netns(managers.placements.head_port(cluster))
        where = os.stat(path).st_ino
        old = self._listeners.get(name)
        if old and old.where == where:
            old.wanted = time.monotonic()
            return
        if old:
            self._close(name)
        listener = in_netns(path, partial(_listening, cluster.head_address))
        state = {"cluster": name}
        make = partial(InsideProtocol, self._config, self._state, state, self._loop)
        made = asyncio.run_coroutine_threadsafe(
            self._loop.create_server(make, sock=listener, backlog=_BACKLOG), self._loop
        )
        self._listeners[name] = _Listener(where, made.result(10), time.monotonic())

    def close_one(self, name: str) -> None:
        """Ends the listener of a cluster and its connections."""
        with self._lock:
            if name in self._listeners:
                self._close(name)

    def _close(self, name: str) -> None:
        server = self._listeners.pop(name).server

        async def end() -> None:
            server.close()
            for one in list(self._state.connections):
                if isinstance(one, InsideProtocol) and one.cluster == name:
                    one.transport.abort()
            await asyncio.sleep(0)  # the aborted ones are closed in the loop's next turn

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)

    def close(self) -> None:
        """Ends all of them, and the loop."""
        for name in list(self._listeners):
            self.close_one(name)
        self._loop.call_soon_threadsafe(self._loop.stop)


def _listening(address: str) -> socket.socket:
    return socket.create_server((address, PORT))
