"""SSH at the port of the network listener: its users, and its protection from strangers. The client is AsyncSSH's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from net_world import Net, tcp
from rest_service import running

import waiting
from ports import reserved
from wherry.base.errors import Code, Refused
from wherry.job.holder_files import HEADER
from wherry.model.accounts import Allowed, Role
from wherry.service import network_listener
from wherry.service.ssh import server
from wherry.service.ssh.program import ProgramOnNode
from wherry.service.ssh.session import NodeSession

KEY = asyncssh.generate_private_key("ssh-ed25519")
PUBLIC = KEY.export_public_key().decode()
_MUCH, _LOOKS = 64 << 20, 30
"""Bytes that no program may have written, and looks by which it has stopped."""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    with running(tmp_path) as service, reserved() as port:
        net = Net(service, port)
        net.start()
        try:
            net.listen(ssh=True)
            yield net
        finally:
            net.stop()


def account(net: Net, name: str, role: Role = Role.USER) -> None:
    """One with the key."""
    with net.client(name, role) as client:
        client.add_ssh_key("key", PUBLIC)


def connection(net: Net, user: str, key: asyncssh.SSHKey = KEY, **more: Any) -> Any:
    """To be entered; the host key is checked."""
    with net.socket_client() as client:
        mark = client.listener()["ssh_fingerprint"]
    known = asyncssh.import_known_hosts(f"* {net.listener.ssh_host_key()}\n")
    assert mark.startswith("SHA256:")
    return asyncssh.connect(
        "127.0.0.1", net.port, username=user, client_keys=[key], known_hosts=known, config=None, agent_path=None,
        login_timeout=waiting.bound(), **more,
    )  # fmt: skip


def ran(act: Callable[[], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(waiting.bound()):
            return await act()

    return asyncio.run(run())


def said(net: Net, user: str) -> tuple[int | None, str]:
    """Exit code and standard error of a program on a node."""

    async def run() -> tuple[int | None, str]:
        async with connection(net, user) as made:
            done = await made.run("true")
            return done.exit_status, str(done.stderr)

    found: tuple[int | None, str] = ran(run)
    return found


def refused(net: Net, user: str, **how: Any) -> bool:
    async def run() -> bool:
        try:
            async with connection(net, user, **how):
                return False
        except asyncssh.PermissionDenied:
            return True

    return bool(ran(run))


def test_an_account_is_known_by_its_key_alone(net: Net) -> None:
    account(net, "ann")
    net.client("bob")
    for user in ("bob+hers-0", "nobody+hers-0", "ann", "hers-0", "+hers-0", "root+hers-0"):
        assert refused(net, user), user
    assert refused(net, "ann+hers-0", key=asyncssh.generate_private_key("ssh-ed25519"))
    assert refused(net, "ann+hers-0", password="four words are long", preferred_auth="password,keyboard-interactive")
    assert not refused(net, "ann+hers-0")


def test_it_has_the_rights_of_its_account(net: Net) -> None:
    account(net, "ann")
    account(net, "vic", Role.VIEWER)
    code, text = said(net, "ann+none-0")
    assert code == 255 and "users may not make clusters or run programs here" in text
    net.root.allow(Allowed.NODES)
    code, text = said(net, "ann+none-0")
    assert code == 255 and "error NOT_FOUND: no node is named 'none-0'" in text, text
    assert "your role is viewer" in said(net, "vic+none-0")[1]
    rows = [row for row in net.service.context.store.accounts.audit(0, 100) if row.what.startswith("SSH /")]
    assert {(row.who, row.what, row.code) for row in rows} == {
        ("ann", "SSH /none-0", "PERMISSION"), ("ann", "SSH /none-0", "NOT_FOUND"), ("vic", "SSH /none-0", "PERMISSION"),
    }  # fmt: skip


def test_only_programs_on_nodes_are_served(net: Net) -> None:
    account(net, "ann")
    net.root.allow(Allowed.NODES)

    async def run() -> None:
        async with connection(net, "ann+hers-0") as made:
            with pytest.raises(asyncssh.ChannelOpenError, match="no node is named 'hers-0'"):
                await made.open_connection("127.0.0.1", net.port)
            with pytest.raises(asyncssh.ChannelOpenError):
                await made.open_unix_connection("/run/wherry/wherryd.sock")
            with pytest.raises(asyncssh.ChannelListenError):
                await made.forward_remote_port("127.0.0.1", 0, "127.0.0.1", 1)
            with pytest.raises(asyncssh.ChannelOpenError):
                await made.create_process(subsystem="netconf")

    ran(run)


def endless(monkeypatch: pytest.MonkeyPatch, first: bytes = b"") -> list[int]:
    """In place of programs on nodes: output without end after the `first`. The list has the bytes of each."""
    written: list[int] = []

    def write(pipe: int, number: int) -> None:
        frame = HEADER.pack(1, 0, 1 << 15) + b"x" * (1 << 15)
        with open(pipe, "wb", buffering=0) as opened, contextlib.suppress(BrokenPipeError):
            if first:
                opened.write(first)
            while True:
                written[number] += opened.write(frame) or 0

    def start(self: ProgramOnNode, writer: int) -> str:
        written.append(0)
        pipe = os.dup(writer)
        os.set_blocking(pipe, True)
        threading.Thread(target=write, args=(pipe, len(written) - 1), daemon=True).start()
        return "job-x"

    async def feed(self: ProgramOnNode) -> None:
        pass

    monkeypatch.setattr(ProgramOnNode, "_start", start)
    monkeypatch.setattr(ProgramOnNode, "_end", lambda self: None)
    monkeypatch.setattr(ProgramOnNode, "_forget", lambda self: None)
    monkeypatch.setattr(ProgramOnNode, "_feed", feed)
    return written


class Stopping(asyncssh.SSHClientSession[bytes]):
    """Reads nothing more from its connection, once output has come."""

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        transport = self._channel.get_connection()._transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()


def test_a_client_that_does_not_read_keeps_its_program_waiting(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it promises to take 4 GiB: the transport takes no more, then."""
    account(net, "ann")
    written = endless(monkeypatch)
    looks: list[int] = []

    def settled() -> bool:
        looks.append(sum(written))
        return looks[-1] >= _MUCH or (looks[-1] > 0 and looks[-_LOOKS:] == looks[-1:] * _LOOKS)

    async def run() -> None:
        async with connection(net, "ann+hers-0") as made:
            await made.create_session(Stopping, "x", encoding=None, window=2**32 - 1)
            await asyncio.to_thread(waiting.until, settled, "a program that waits, or writes on and on")
            assert 0 < written[0] < _MUCH
            made.abort()

    ran(run)


def test_a_port_may_speak_first(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    account(net, "ann")
    endless(monkeypatch, HEADER.pack(1, 0, 1) + b"+" + HEADER.pack(1, 0, 4) + b"220 ")

    async def run() -> None:
        async with connection(net, "ann+hers-0") as made:
            reader, writer = await made.open_connection("localhost", 25)
            assert await reader.readexactly(5) == b"220 x"
            writer.close()
            made.abort()

    ran(run)


def test_variables_are_few_and_short(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    account(net, "ann")
    found: list[dict[str, str]] = []

    def request(self: NodeSession, commands: object) -> None:
        found.append(self._variables)
        raise Refused(Code.NOT_FOUND, "nothing")

    monkeypatch.setattr(NodeSession, "request", request)
    net.root.allow(Allowed.NODES)
    many = {f"LC_{number}": "x" for number in range(200)}

    async def run() -> None:
        async with connection(net, "ann+hers-0") as made:
            await made.run("true", env={"LANG": "C", "PATH": "/x", "LD_PRELOAD": "x", "LC_X": "x" * 5000, **many})

    ran(run)
    assert len(found[0]) == 64 and found[0]["LANG"] == "C"
    assert not found[0].keys() & {"PATH", "LD_PRELOAD", "LC_X"}


def test_a_removed_key_ends_its_connections(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    account(net, "ann")
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.02)

    async def run() -> None:
        async with connection(net, "ann+hers-0") as made:
            await asyncio.to_thread(net.root.remove_user, "ann")
            await made.wait_closed()

    ran(run)
    assert refused(net, "ann+hers-0")


def test_a_key_in_the_place_of_another_ends_its_connections(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    account(net, "ann")
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.02)
    new = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()

    def replace() -> None:
        with net.socket_client() as root:
            root.remove_ssh_key("key", "ann")
            root.add_ssh_key("key", new, "ann")

    async def run() -> None:
        async with connection(net, "ann+hers-0") as made:
            await asyncio.to_thread(replace)
            await made.wait_closed()

    ran(run)


def test_a_public_key_alone_takes_no_place(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can offer somebody's public key, and stay silent when asked for a proof."""
    account(net, "ann")
    monkeypatch.setattr(server, "CONNECTIONS_OF_ONE", 1)
    asked = asyncio.Event()

    class Offered(asyncssh.SSHKeyPair):
        async def sign_async(self, data: bytes) -> bytes:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    public = asyncssh.import_public_key(PUBLIC)
    offered = Offered(
        public.algorithm, public.algorithm, public.sig_algorithms, public.sig_algorithms, public.public_data, b""
    )

    async def run() -> None:
        stranger = asyncio.create_task(connection(net, "ann+hers-0", key=offered).__aenter__())
        await asked.wait()
        async with connection(net, "ann+hers-0") as made:
            assert (await made.run("true")).exit_status == 255
        stranger.cancel()

    ran(run)


def test_the_keys_and_connections_of_one_are_bounded(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    account(net, "ann")
    monkeypatch.setattr(server, "KEYS", 2)
    many = [asyncssh.generate_private_key("ssh-ed25519") for _ in range(3)]

    async def offer(keys: list[asyncssh.SSHKey]) -> None:
        known = asyncssh.import_known_hosts(f"* {net.listener.ssh_host_key()}\n")
        async with asyncssh.connect(
            "127.0.0.1", net.port, username="ann+x-0", client_keys=keys, known_hosts=known, config=None,
            agent_path=None,
        ):  # fmt: skip
            pass

    with pytest.raises(asyncssh.PermissionDenied, match="too many keys"):
        ran(lambda: offer([*many, KEY]))
    monkeypatch.setattr(server, "CONNECTIONS_OF_ONE", 1)

    async def two() -> None:
        async with connection(net, "ann+x-0"):
            with pytest.raises(asyncssh.Error):
                async with connection(net, "ann+x-0") as second:
                    await second.run("true")

    ran(two)


def test_silent_clients_get_the_version_and_others_tls(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_listener, "_FIRST_WORD_SECONDS", 0.02)
    with tcp(net.port) as plain:
        assert plain.recv(64).startswith(b"SSH-2.0-Wherry")
    with net.connected() as wrapped:
        assert wrapped.version() in ("TLSv1.2", "TLSv1.3")


def test_without_the_option_it_is_not_served(net: Net) -> None:
    account(net, "ann")
    with net.client("bob") as client:
        assert client.ssh() == {"user": "bob", "host_key": net.listener.ssh_host_key()}

        async def run() -> None:
            async with connection(net, "ann+hers-0") as made:
                await asyncio.to_thread(net.listen)  # connections end with the listener
                await made.wait_closed()

        ran(run)
        with tcp(net.port) as plain:
            plain.sendall(b"SSH-2.0-stranger\r\n")
            assert not plain.recv(64).startswith(b"SSH")
        with pytest.raises(Refused, match="not reached by SSH"):
            client.ssh()
    with net.socket_client() as root:
        assert root.listener()["ssh_fingerprint"] == ""
        with pytest.raises(Refused, match="SSH is for accounts"):
            root.ssh()
