"""A second daemon of an instance, which takes over when the leader dies or does not respond.

Invariants: it does nothing to the instance before it holds the instance's lock, which no other process then has. A
leader that does not respond is ended only after its lease was taken, so it can write nothing between the two, and only
if the process that holds the lock is the process that the lease names.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socket import socket

from wherry.base.errors import Code, LostContact, Refused, WherryError
from wherry.base.paths import Instance
from wherry.base.version import __version__
from wherry.base.wait import readable
from wherry.service.database_choice import address_of, note_of
from wherry.service.instance_lock import InstanceLock, holder_text, leader_of
from wherry.service.periodic import PeriodicTask
from wherry.service.problem import problem
from wherry.store.database import Database
from wherry.store.lease import Lease

_EVERY = 0.5
"""Seconds between two looks at the lock and the lease."""
_RENEW_SECONDS = 1.0
_END_SECONDS = 5.0
"""How long a process that was killed may take to end."""
log = logging.getLogger("wherry.standby")


class LeaseKeeper(PeriodicTask):
    """Renews the leader's lease."""

    def __init__(self, lease: Lease) -> None:
        super().__init__("lease", _RENEW_SECONDS)
        self._lease = lease

    def run_once(self) -> None:
        self._lease.renew()


class Standby:
    """Waits for the place of the leader of an instance."""

    def __init__(self, place: Instance, given: str) -> None:
        """`given` is the value of WHERRY_DATABASE_URL."""
        self._place, self._given = place, given
        self._lease: Lease | None = None
        self._ending = ""
        """The leader whose lease was taken, and which may not have ended yet."""
        self._told = ""

    def wait(self) -> InstanceLock | None:
        """The instance's lock, once this process has it; None when the instance is being removed."""
        while self._place.run.exists() and not self._place.ending.exists():
            with suppress(Refused):
                return InstanceLock(self._place, patience=0)
            try:
                self._look()
                self._tell("")
            except WherryError as error:  # the server is gone, perhaps: then no other leads either
                self._tell(str(error))
            time.sleep(_EVERY)
        return None

    def _look(self) -> None:
        """Replaces a leader whose lease has expired."""
        note = note_of(self._place)
        if note is None:  # SQLite has no lease
            return
        if self._lease is None:
            address = address_of(self._place, self._given)
            self._lease = Lease(Database(address))
        row, pid, mine = self._lease.read(), leader_of(self._place), holder_text(os.getpid())
        leader = holder_text(pid)
        stands_still = row.holder == leader or (row.holder == mine and leader == self._ending)
        if not row.valid and row.place == note.id and stands_still and self._lease.take(note.id, mine):
            log.warning("the daemon (process %s) does not respond: it is ended, and this one takes over", pid)
            self._ending = leader
            _end(pid, leader)

    def _tell(self, text: str) -> None:
        if text and text != self._told:
            log.warning("%s", text)
        self._told = text


def _end(pid: int, text: str) -> None:
    """Kills the process, if it is still the one of this text, and waits for its end."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            if holder_text(pid) == text:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                readable(process, _END_SECONDS)
        finally:
            os.close(process)


@contextmanager
def saying_who_leads(place: Instance, listener: socket, path: Path) -> Iterator[None]:
    """Answers every request at the socket with who leads, until the end of the block."""

    class Answer(BaseHTTPRequestHandler):
        def answer(self) -> None:
            why = f"process {leader_of(place) or '?'} leads, at {place.socket}"
            error = LostContact(Code.UNREACHABLE, "this daemon is a standby", why, "wherry daemon status")
            status, body = error.code.http_status, problem(error)
            if self.path == "/healthz":
                status, body = 200, {"status": "standby"}
            data = json.dumps(body).encode()
            self.send_response(status)
            kind = "application/json" if status == 200 else "application/problem+json"
            for name, value in (("Content-Type", kind), ("Content-Length", len(data)), ("Wherry-Version", __version__)):
                self.send_header(name, str(value))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    server = Server(str(path), Answer, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": _EVERY}, name="standby", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        server.shutdown()
        server.server_close()
