"""Serves connections of SSH, on a thread with an event loop of its own.

A client is `ACCOUNT+NODE`, and is known by one of the account's public keys alone. Invariants: only programs on nodes
and connections from nodes are served, nothing of the daemon's machine; a client's connection is cut when its account or
key is gone; whatever strangers send reaches no log.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import asyncssh
from asyncssh.kex import get_kex_algs

from wherry.base.errors import Code, Refused
from wherry.model.ec2 import KeyPair
from wherry.service.account_caller import AccountCaller
from wherry.service.audit import Audit
from wherry.service.commands import Commands
from wherry.service.context import ServiceContext
from wherry.service.rate_limit import RateLimit, source_of
from wherry.service.rest.authorization import RULES, require_role
from wherry.service.ssh.forwarding import NodeConnection
from wherry.service.ssh.program import EXEC, Place, ProgramOnNode
from wherry.service.ssh.session import NodeSession

CONNECTIONS, CONNECTIONS_OF_SOURCE, CONNECTIONS_OF_ONE, PROGRAMS = 128, 64, 32, 64
"""Most connections: in all, of one source, and of one account; and most sessions and forwarded ports of an account."""
KEYS = 20
"""Most keys that a client may offer on one connection."""
_LOGIN_SECONDS = _LOOK_SECONDS = _ALIVE_SECONDS = 30
_QUICK = ("mlkem768x25519-sha256", "curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256")
_EXCHANGES = [name for name in _QUICK if name.encode() in get_kex_algs()]
"""Exchanges of keys that cost the server little: strangers may begin some, on the loop that serves everybody."""
_LOOKUPS, _PROGRAMS = 4, 256
_CLOSING_SECONDS = 3.0
_MUTE = logging.getLogger("asyncssh")
_MUTE.setLevel(logging.CRITICAL + 1)
log = logging.getLogger("wherry.ssh")
_T = TypeVar("_T")
_P = TypeVar("_P", bound=ProgramOnNode)


class SshServer:
    """Of an instance. Safe from several threads."""

    def __init__(self, context: ServiceContext, host_key: bytes) -> None:
        self._context, self._audit = context, Audit(context)
        self._host_key = asyncssh.import_private_key(host_key)
        self._lookups, self._programs = ThreadPoolExecutor(_LOOKUPS, "ssh"), ThreadPoolExecutor(_PROGRAMS, "ssh-node")
        """Threads for reads of the database, and for the starts and ends of programs, which wait for nodes."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="ssh", daemon=True)
        self._thread.start()
        self._wrong_keys = RateLimit(rate=1.0, burst=200.0)
        self._clients = set[_Client]()
        self._is_ending = False

    async def serve(self, connection: socket.socket, address: str) -> None:
        """Serves a connection to its end, which is closed then. Called on any event loop."""
        talk = asyncio.run_coroutine_threadsafe(self._talk(connection, address), self._loop)
        await asyncio.wrap_future(talk)

    def close(self) -> None:
        """Ends the connections, and with them their programs, and then the thread. Returns after some seconds at the
        latest: a program may be slow to end."""
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop)
        self._thread.join(_CLOSING_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
            for threads in (self._lookups, self._programs):
                threads.shutdown(wait=False)

    def may_offer_more(self, address: str) -> bool:
        """Whether a client from there, with a wrong key, may offer others: guessing is bounded."""
        return self._wrong_keys.take(source_of(address))

    def has_key(self, name: str, public: str) -> bool:
        """Whether an account has a key."""
        account = self._context.store.accounts.user(name)
        pairs = self._context.store.ec2.all(KeyPair, account.uid) if account else []
        return any(pair.public == public for pair in pairs)

    def caller(self, name: str, public: str, address: str) -> AccountCaller:
        """The account as it is now. UNAUTHENTICATED when it or its key is gone."""
        accounts = self._context.store.accounts
        account = accounts.user(name)
        if account is None or not self.has_key(name, public):
            why = "the account or its key was removed"
            raise Refused(Code.UNAUTHENTICATED, "you are not signed in", why, "wherry ssh-key list")
        return AccountCaller.of(account, tuple(accounts.projects(name)), address, "")

    def place(
        self, node: str, caller: Callable[[], AccountCaller], writable: asyncio.Event, is_exchanging: Callable[[], bool]
    ) -> Place:
        """A node, and how it is reached."""
        return Place(self._context, self._audit, self._programs, node, caller, writable, is_exchanging)

    async def in_thread(self, act: Callable[..., _T], *arguments: object) -> _T:
        """The result of a call that may wait."""
        return await self._loop.run_in_executor(self._lookups, act, *arguments)

    async def _end_all(self) -> None:
        self._is_ending = True
        for client in list(self._clients):
            client.end()
        while self._clients:
            await asyncio.sleep(0.02)
        self._loop.stop()

    async def _talk(self, connection: socket.socket, address: str) -> None:
        client = _Client(self, address)
        self._clients.add(client)
        try:
            if (
                self._is_ending
                or len(self._clients) > CONNECTIONS
                or self._of_source(source_of(address)) > CONNECTIONS_OF_SOURCE
            ):
                return
            made = await asyncssh.run_server(
                connection, server_factory=lambda: client, server_host_keys=[self._host_key], encoding=None,
                server_version="Wherry", login_timeout=_LOGIN_SECONDS, keepalive_interval=_ALIVE_SECONDS,
                password_auth=False, kbdint_auth=False, host_based_auth=False, gss_host=None, line_editor=False,
                agent_forwarding=False, x11_forwarding=False, allow_scp=False, compression_algs=None,
                kex_algs=_EXCHANGES,
            )  # fmt: skip
            await client.watch(made)
        except (asyncssh.Error, OSError, ValueError):  # a stranger, or the line was cut
            pass
        finally:
            client.end()
            connection.close()
            await client.settled()
            self._clients.discard(client)

    def _of_source(self, source: str) -> int:
        return sum(source_of(client.address) == source for client in self._clients)

    def of_account(self, name: str) -> list[_Client]:
        """Connections of an account."""
        return [client for client in self._clients if client.account == name]

    def require(self, node: str, caller: AccountCaller) -> None:
        """NOT_FOUND, PERMISSION when the caller may run no program on the node any more."""
        require_role(caller, RULES[EXEC], f"SSH to {node}")
        commands = Commands(self._context, caller)
        commands.program_owner(None, commands.cluster_of(node))


class _Client(asyncssh.SSHServer):
    """One connection: its account and key, once they are known."""

    def __init__(self, server: SshServer, address: str) -> None:
        self._server, self.address = server, address
        self._offered = 0
        self._name, self._node, self._key = "", "", ""
        """As the client claims."""
        self.account = ""
        """Empty until it is proved, as anybody can offer a public key."""
        self._programs = set[ProgramOnNode]()
        self._writable = asyncio.Event()
        self._writable.set()
        self._connection: asyncssh.SSHServerConnection | None = None

    # Called by asyncssh.

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """The connection, before its first message. AsyncSSH does nothing when the transport has enough."""
        self._connection = conn
        conn.pause_writing, conn.resume_writing = self._writable.clear, self._writable.set  # type: ignore[method-assign]

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Whether a key is one of the account's; asyncssh has the client prove that it has the private part."""
        self._offered += 1
        name, _, node = username.partition("+")
        public = _text(key)
        found = await self._server.in_thread(self._server.has_key, name, public) if node else False
        if not found:
            if self._offered > KEYS or not self._server.may_offer_more(self.address):
                raise asyncssh.PermissionDenied("too many keys were offered")
            return False
        self._name, self._node, self._key = name, node, public
        return True

    def public_key_auth_supported(self) -> bool:
        """No other way in."""
        return True

    def auth_completed(self) -> None:
        """A client that has proved to have the private part of the key that it offered last."""
        self.account = self._name
        if len(self._server.of_account(self.account)) > CONNECTIONS_OF_ONE:
            raise asyncssh.PermissionDenied(f"{self.account} has {CONNECTIONS_OF_ONE} connections open already")

    def session_requested(self) -> NodeSession | bool:
        """A program on the node."""
        return self._kept(NodeSession(self._place)) if self._has_room() else False

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[NodeConnection]:
        """A connection from the node to a port. ChannelOpenError."""
        if not self._has_room():
            what = f"at most {PROGRAMS} sessions and connections at once"
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, what)
        return self._kept(NodeConnection(self._place, dest_host, dest_port)).connected()

    def _has_room(self) -> bool:
        return sum(client.programs() for client in self._server.of_account(self.account)) < PROGRAMS

    def _kept(self, program: _P) -> _P:
        self._programs.add(program)
        return program

    @property
    def _place(self) -> Place:
        def is_exchanging() -> bool:
            return bool(self._connection and getattr(self._connection, "_deferred_packets", False))

        return self._server.place(self._node, self._caller, self._writable, is_exchanging)

    # Called by the server.

    def programs(self) -> int:
        """How many programs it has."""
        self._programs = {program for program in self._programs if not program.is_over}
        return len(self._programs)

    async def watch(self, connection: asyncssh.SSHServerConnection) -> None:
        """Returns when the connection has ended; it is ended when account or key are gone, or a program of it is on a
        node that the account may not use any more."""
        ended = asyncio.create_task(connection.wait_closed())
        while not (await asyncio.wait([ended], timeout=_LOOK_SECONDS))[0]:
            try:
                caller = await self._server.in_thread(self._caller)
                if self.programs():
                    await self._server.in_thread(self._server.require, self._node, caller)
            except Refused as error:
                connection.disconnect(asyncssh.DISC_NO_MORE_AUTH_METHODS_AVAILABLE, str(error))
                self.end()
            except Exception:  # the database does not answer
                log.exception("a connection of %s could not be looked at", self.account)

    def end(self) -> None:
        """Cuts the connection."""
        if self._connection:
            self._connection.abort()
        for program in self._programs:
            program.connection_lost(None)  # also where its channel was not open yet

    async def settled(self) -> None:
        """Returns when its programs are ended."""
        for program in self._programs:
            await program.settled()

    def _caller(self) -> AccountCaller:
        """The account as it is now. UNAUTHENTICATED when it or the key is gone. Called in a thread."""
        return self._server.caller(self.account, self._key, self.address)


def _text(key: asyncssh.SSHKey) -> str:
    """Type and key, without a comment."""
    return " ".join(key.export_public_key("openssh").decode().split()[:2])
