"""Listens for accounts over the network: HTTP/1.1 over TLS, on the event loop that serves the socket, too; by option
SSH at the same port.

Invariants: nothing is spoken but TLS and SSH; connections are bounded before either begins, in all and for each source,
and each is cut that does not get on; whatever strangers send reaches no log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import h11
import uvicorn
from pydantic import ValidationError
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from wherry.base.errors import Code, Refused, WherryError
from wherry.model.listener import ListenerSetting, ListenerState
from wherry.service import tls
from wherry.service.rate_limit import source_of
from wherry.service.ssh import host_key
from wherry.store import Store

CONNECTIONS, CONNECTIONS_OF_ONE = 256, 128
"""Most open connections: in all, and of one source."""
HANDSHAKE_SECONDS, REQUEST_SECONDS, ANSWER_SECONDS = 30.0, 30.0, 300.0
"""How long TLS, a request, and a request with its answer may take."""
_IDLE_SECONDS = 15
_FIRST_WORD_SECONDS = 2.0
_HANDSHAKE = b"\x16"
"""The first byte of TLS: the type of its first record."""
_HEAD, _PIECE = 16384, 4096
"""Bytes of a request's head, and of a piece that h11 is given at a time."""
_CLOSING_SECONDS = 2.0
_LOOK_AT_CERTIFICATE = 86_400.0
_SETTING = "listen"
"""Setting: a ListenerSetting as JSON; empty: no listener."""
_MUTE = logging.getLogger("wherry.network.mute")
_MUTE.setLevel(logging.CRITICAL + 1)
log = logging.getLogger("wherry.network")


class NetworkProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 for strangers; the state of a request has `network`, the address that it came from."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger, self.access_log = _MUTE, False
        self.gone = asyncio.Event()
        self._ends: list[asyncio.TimerHandle] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """TLS is established: a request is to follow."""
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """A further request on the connection has as long as the first. In pieces, as h11 bounds a head only while it
        is incomplete."""
        if not self._ends:
            self._expect_request()
        for at in range(0, len(data), _PIECE):
            if self.transport.is_closing():
                return
            super().data_received(data[at : at + _PIECE])

    def on_response_complete(self) -> None:
        """Until the next request begins, the connection is idle, which uvicorn bounds."""
        self._cancel()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to end."""
        self._cancel()
        super().connection_lost(exc)
        self.gone.set()

    def _expect_request(self) -> None:
        self._ends = [
            self.loop.call_later(REQUEST_SECONDS, self._end_if_incomplete),
            self.loop.call_later(ANSWER_SECONDS, self.transport.abort),
        ]

    def _cancel(self) -> None:
        for end in self._ends:
            end.cancel()
        self._ends = []

    def _end_if_incomplete(self) -> None:
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()


class SshServing(Protocol):
    """Serves connections of SSH."""

    async def serve(self, connection: socket.socket, address: str) -> None:
        """To its end, when it is closed."""

    def close(self) -> None:
        """Ends all."""


class NetworkListener:
    """The listener of an instance. Its methods are called on the event loop, but for `shown`."""

    def __init__(
        self, app: Any, store: Store, directory: Path, make_ssh: Callable[[bytes], SshServing] | None = None
    ) -> None:
        """`directory` has the authority and certificate of one's own, and the host key of SSH, with which `make_ssh`
        serves it."""
        self._store, self._directory = store, directory
        self._config = uvicorn.Config(
            app, http=NetworkProtocol, ws="none", lifespan="off", log_config=None, access_log=False,
            proxy_headers=False, server_header=False, date_header=False, timeout_keep_alive=_IDLE_SECONDS,
            h11_max_incomplete_event_size=_HEAD,
        )  # fmt: skip
        self._state = ServerState()
        self._open: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        """Of connections."""
        self._listening: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()
        self._setting: ListenerSetting | None = None
        self._socket: socket.socket | None = None
        self._error = ""
        self._make_ssh = make_ssh
        self._ssh: SshServing | None = None

    def shown(self) -> ListenerState:
        """Where it listens."""
        setting = self._setting
        if setting is None:
            return ListenerState(error=self._error)
        ca = "" if setting.certificate else str(tls.authority_path(self._directory))
        mark = tls.fingerprint(Path(ca)) if ca else ""
        of_ssh = host_key.fingerprint(self.ssh_host_key()) if setting.ssh else ""
        return ListenerState(
            setting=setting, url=url_of(setting), ca=ca, fingerprint=mark, ssh_fingerprint=of_ssh, error=self._error
        )

    def ssh_host_key(self) -> str:
        """The public host key of SSH. WRONG_STATE when it is not served."""
        if self._ssh is None:
            what, why = "nodes are not reached by SSH here", "it is not switched on at the daemon's machine"
            raise Refused(Code.WRONG_STATE, what, why, "wherry daemon listen ADDRESS:PORT --ssh, there")
        return host_key.public_key(host_key.private_key(self._directory))

    async def resume(self) -> None:
        """Listens by the setting. An error in this is logged and shown, and the socket is served all the same."""
        text = await asyncio.to_thread(self._store.setting, _SETTING)
        if not text:
            return
        try:
            await self._listen(ListenerSetting.model_validate_json(text))
        except (WherryError, ValidationError) as error:
            self._error = str(error)
            log.error("nobody can ask over the network: %s", error)

    async def change(self, setting: ListenerSetting | None) -> ListenerState:
        """Listens there instead, now and after a restart; None: nowhere. Refused when it cannot, and then as before."""
        async with self._changing:
            before = self._setting
            await self._close()
            if setting:
                try:
                    await self._listen(setting)
                except WherryError:
                    if before:
                        with contextlib.suppress(WherryError):
                            await self._listen(before)
                    raise
            text = setting.model_dump_json() if setting else ""
            await asyncio.to_thread(self._store.put_setting, _SETTING, text)
            where = f"the daemon listens at {url_of(setting)}" if setting else "the daemon does not listen any more"
            await asyncio.to_thread(self._store.add_event, "daemon.listen", "network", where)
            return await asyncio.to_thread(self.shown)

    async def close(self) -> None:
        """Ends the listener and its connections; the setting stays."""
        async with self._changing:
            await self._close()

    async def _listen(self, setting: ListenerSetting) -> None:
        if not self._config.loaded:
            self._config.load()
        context = await asyncio.to_thread(self._context, setting)
        key = await asyncio.to_thread(host_key.private_key, self._directory) if setting.ssh else None
        self._socket = await asyncio.to_thread(_bound, setting)
        self._ssh = self._make_ssh(key) if key and self._make_ssh else None
        self._setting, self._error = setting, ""
        loop = asyncio.get_running_loop()
        both = self._accept(self._socket, context), self._renew(setting, context)
        self._listening = [loop.create_task(one) for one in both]
        log.info("listening at %s", url_of(setting))

    def _context(self, setting: ListenerSetting) -> ssl.SSLContext:
        return tls.server_context(*self._files(setting))

    def _files(self, setting: ListenerSetting) -> tuple[Path, Path]:
        """Paths of the certificate and its key; those of one's own are made or renewed."""
        if setting.certificate and setting.key:
            return Path(setting.certificate), Path(setting.key)
        return tls.own_certificate(self._directory, {*tls.own_names(setting.address), *setting.names})

    async def _renew(self, setting: ListenerSetting, context: ssl.SSLContext) -> None:
        """Once a day: a certificate that ends soon is renewed, a given one read again."""
        while True:
            await asyncio.sleep(_LOOK_AT_CERTIFICATE)
            try:
                await asyncio.to_thread(lambda: tls.load_into(context, *self._files(setting)))
            except (WherryError, OSError, ValueError):
                log.exception("the certificate stays as it was")

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:  # no descriptor is left, perhaps
                log.warning("a connection was not accepted: %s", error)
                await asyncio.sleep(1.0)
                continue
            source = source_of(str(address[0]))
            if self._open.total() >= CONNECTIONS or self._open[source] >= CONNECTIONS_OF_ONE:
                connection.close()
                continue
            self._open[source] += 1
            task = loop.create_task(self._serve(connection, context, str(address[0]), source))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket, context: ssl.SSLContext, address: str, source: str) -> None:
        loop = asyncio.get_running_loop()
        make = partial(NetworkProtocol, self._config, self._state, {"network": address}, loop)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if (ssh := self._ssh) and not await _begins_tls(connection):
                if ssh is not self._ssh:
                    raise ConnectionAbortedError("the listener has changed")
                await ssh.serve(connection, address)
                return
            _, protocol = await loop.connect_accepted_socket(
                make, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECONDS, ssl_shutdown_timeout=5.0
            )
            await protocol.gone.wait()
        except (OSError, asyncio.CancelledError):  # TLS did not come about, or the listener ends
            connection.close()
        finally:
            self._open[source] -= 1
            if not self._open[source]:
                del self._open[source]

    async def _close(self) -> None:
        if self._socket is None:
            return
        await _cancelled(self._listening)
        self._socket.close()
        self._socket = self._setting = None
        if ssh := self._ssh:
            self._ssh = None
            await asyncio.to_thread(ssh.close)
        for connection in list(self._state.connections):
            connection.shutdown()
        deadline = asyncio.get_running_loop().time() + _CLOSING_SECONDS
        while self._state.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for connection in list(self._state.connections):
            connection.transport.abort()
        await _cancelled(list(self._tasks))


class DaemonServer(uvicorn.Server):
    """uvicorn's server of the socket, with the listener beside it."""

    def __init__(self, config: uvicorn.Config, network: NetworkListener) -> None:
        super().__init__(config)
        self._network = network

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens at the socket, then for the network."""
        await super().startup(sockets)
        await self._network.resume()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends both."""
        await self._network.close()
        await super().shutdown(sockets)


async def _begins_tls(connection: socket.socket) -> bool:
    """Whether a client begins with TLS. Clients of SSH send their version, or wait for the server's."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        async with asyncio.timeout(_FIRST_WORD_SECONDS):
            await ready.wait()
        return connection.recv(1, socket.MSG_PEEK) == _HANDSHAKE
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(connection)


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def url_of(setting: ListenerSetting) -> str:
    """The URL for clients: with this machine's name where it listens at all addresses."""
    anywhere = setting.address in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    host = socket.gethostname() if anywhere else setting.address
    return f"https://[{host}]:{setting.port}" if ":" in host else f"https://{host}:{setting.port}"


def _bound(setting: ListenerSetting) -> socket.socket:
    """A listening socket. WRONG_STATE when it cannot be had."""
    try:
        found = socket.getaddrinfo(setting.address, setting.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, address = found[0][0], found[0][4]
        made = socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        what, why = f"the daemon cannot listen at {setting.address} port {setting.port}", error.strerror or str(error)
        raise Refused(Code.WRONG_STATE, what, why, "wherry daemon listen ADDRESS:PORT, with a free port") from None
    made.setblocking(False)
    return made
