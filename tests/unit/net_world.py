"""A daemon's server that listens on the network, here on loopback."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn
from accounts_world import ROOT, UNLIMITED
from rest_service import Here, Service

import waiting
from wherry.client import Client
from wherry.model.accounts import Role
from wherry.service import tls
from wherry.service.account_commands import AccountCommands
from wherry.service.authentication import new_token
from wherry.service.credentials import PeerProtocol
from wherry.service.daemon import listening
from wherry.service.network_listener import DaemonServer, NetworkListener
from wherry.service.rest.app import make_app
from wherry.service.ssh.server import SshServer


def tcp(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=waiting.bound())


class Net:
    """A daemon's server with a listener, as `wherry.service.daemon` makes it."""

    def __init__(self, service: Service, port: int) -> None:
        self.service, self.port = service, port
        self.place = Here("net", service.place.top / "net")
        self.place.run.mkdir(parents=True)
        app = make_app(service.context)
        service.context.network = self.listener = NetworkListener(
            app, service.context.store, self.place.top / "tls", partial(SshServer, service.context)
        )
        config = uvicorn.Config(
            app, http=PeerProtocol, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1
        )
        self.server = DaemonServer(config, self.listener)
        self.root = AccountCommands(service.context, ROOT)
        self.thread = threading.Thread(
            target=self.server.run, args=([listening(self.place.socket, None)],), daemon=True
        )

    def start(self) -> None:
        self.thread.start()
        waiting.until(lambda: self.server.started or not self.thread.is_alive(), "the server")

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    @property
    def ca(self) -> str:
        return str(tls.authority_path(self.place.top / "tls"))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def socket_client(self) -> Client:
        """As root at the socket."""
        return Client(self.place, start=False)

    def listen(self, **more: Any) -> Any:
        return self.socket_client().listen({"address": "127.0.0.1", "port": self.port, **more})

    def client(self, name: str, role: Role = Role.USER) -> Client:
        """A new account's."""
        self.root.add_user(name, role, UNLIMITED, None)
        return Client.at(self.url, new_token(self.service.context, name, "test", 1)[1], self.ca)

    @contextmanager
    def connected(self) -> Iterator[ssl.SSLSocket]:
        context = ssl.create_default_context(cafile=self.ca)
        with tcp(self.port) as plain:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
                yield wrapped
