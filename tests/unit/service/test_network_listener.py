"""The listener for the network, with TLS, on loopback: its users, and its protection from strangers."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
import uvicorn
from accounts_world import UNLIMITED
from net_world import Net, tcp
from rest_service import CLUSTER, running

import waiting
from ports import reserved
from wherry import __version__
from wherry.base.errors import Code, LostContact, Refused, WherryError
from wherry.base.paths import as_root
from wherry.client import Client, daemon_process, identity, remote
from wherry.model.accounts import Allowed, Role
from wherry.model.listener import ListenerSetting
from wherry.model.paging import Wanted
from wherry.service import network_listener, tls
from wherry.service.credentials import PeerProtocol
from wherry.service.daemon import listening
from wherry.service.network_listener import DaemonServer, NetworkListener
from wherry.service.rest.app import make_app

PASSWORD = "four words are long"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    with running(tmp_path) as service, reserved() as port:
        net = Net(service, port)
        net.start()
        try:
            net.listen()
            yield net
        finally:
            net.stop()


def test_two_users_work_and_do_not_see_each_other(net: Net) -> None:
    ann, bob = net.client("ann"), net.client("bob")
    net.root.allow(Allowed.JOBS)
    for client, name in ((ann, "hers"), (bob, "his")):
        client.wait(client.up({**CLUSTER, "name": name, "nodes": 1, "cpus": 0.1}).id)
    assert [c["name"] for c in ann.clusters()] == ["hers"] and [c["name"] for c in bob.clusters()] == ["his"]
    with pytest.raises(Refused) as caught:
        ann.wait(ann.down("his").id)
    assert caught.value.code is Code.NOT_FOUND
    job = ann.run("hers", ["hello"], 1)
    assert net.service.jobs.environments[job.id] == {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    assert b"".join(chunk for _, _, chunk in ann.output(job.id)) == b"out\nerr\n"
    ann.wait(ann.down("hers").id)
    assert [o.by for o in ann.operations()] == ["ann"] * 3


def test_sign_in_and_out(net: Net) -> None:
    net.root.add_user("ann", Role.USER, UNLIMITED, PASSWORD)
    text = Client.at(net.url, "", net.ca).sign_in("ann", PASSWORD)["text"]
    client = Client.at(net.url, text, net.ca)
    assert client.me()["name"] == "ann"
    client.sign_out()
    with pytest.raises(Refused) as caught:
        client.me()
    assert caught.value.code is Code.UNAUTHENTICATED


def test_only_tls_is_spoken_and_only_with_who_signed_it(net: Net) -> None:
    plain = http.client.HTTPConnection("127.0.0.1", net.port, timeout=waiting.bound())
    with pytest.raises((OSError, http.client.HTTPException)):
        plain.request("GET", "/healthz")
        plain.getresponse()
    with pytest.raises(LostContact) as caught:
        Client.at(net.url, "", "").me()
    assert "is not trusted" in caught.value.what
    with pytest.raises(LostContact):
        Client.at(f"https://127.0.0.2:{net.port}", "", net.ca).me()
    old = ssl.create_default_context(cafile=net.ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with tcp(net.port) as raw, pytest.raises((OSError, ssl.SSLError)):
        old.wrap_socket(raw, server_hostname="127.0.0.1")


def test_connections_are_bounded_before_tls(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_listener, "CONNECTIONS_OF_ONE", 3)
    with ExitStack() as silent:
        for _ in range(3):
            silent.enter_context(tcp(net.port))
        waiting.until(lambda: net.listener._open.total() == 3, "the connections")
        with tcp(net.port) as fourth:
            assert fourth.recv(1) == b""
        assert net.socket_client().listener()["url"], "the socket is served meanwhile"
    waiting.until(lambda: net.listener._open.total() == 0, "their end")
    assert net.client("ann").me()["name"] == "ann"


def test_who_does_not_get_on_is_cut(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither TLS, nor a request, nor a request after an answered one may take for ever."""
    with monkeypatch.context() as patch:
        patch.setattr(network_listener, "HANDSHAKE_SECONDS", 0.1)
        with tcp(net.port) as silent:
            assert silent.recv(1) == b""

    def await_cut(connection: ssl.SSLSocket) -> None:
        """While its request continues, byte by byte."""
        request = iter(b"GET /v1/me HTTP/1.1\r\nX-Slow: " + b"x" * 12_000)

        def is_cut() -> bool:
            try:
                connection.sendall(bytes([next(request)]))
            except OSError:
                return True
            return False

        waiting.until(is_cut, "the cut")

    with net.connected() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in slow.recv(4096)
        monkeypatch.setattr(network_listener, "REQUEST_SECONDS", 0.3)
        await_cut(slow)
    with net.connected() as slow:
        await_cut(slow)
    monkeypatch.setattr(network_listener, "REQUEST_SECONDS", 3600.0)
    monkeypatch.setattr(network_listener, "ANSWER_SECONDS", 0.3)
    client = net.client("ann")
    with pytest.raises(WherryError):
        client.get("/v1/events", wait=10, after=2**40)
    waiting.until(lambda: net.listener._open.total() == 0, "the end of all connections")


def test_heads_and_bodies_are_bounded(net: Net) -> None:
    token = net.client("ann")._transport.remote.token  # type: ignore[union-attr]
    known = f"Authorization: Bearer {token}\r\n"

    def answered(head: str, body: bytes) -> bytes:
        with net.connected() as connection:
            try:
                connection.sendall(f"{head}Host: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            except OSError:
                pass
            try:
                return connection.recv(65536)
            except OSError:
                return b""

    assert b" 422 " in answered("POST /v1/session HTTP/1.1\r\n", b"x" * 5000)
    assert b" 401 " in answered("POST /v1/clusters HTTP/1.1\r\n", b"{}" * 5000)
    assert b" 422 " in answered(f"POST /v1/clusters HTTP/1.1\r\n{known}", b'{"a": "' + b"x" * (5 << 20) + b'"}')
    assert b" 200 " not in answered(f"GET /v1/me HTTP/1.1\r\n{known}X-Long: {'x' * 70_000}\r\n", b"")


def test_what_strangers_send_is_no_http_and_reaches_no_log(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    for rubbish in (
        b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"SECRET-MARK /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        with net.connected() as connection:
            connection.sendall(rubbish)
            try:
                assert b" 200 " not in connection.recv(65536)
            except OSError:
                pass
    with net.connected() as connection:
        connection.sendall(b"GET /v1/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer SECRET-MARK\r\n\r\n")
        assert b" 401 " in connection.recv(65536)
    assert "SECRET-MARK" not in caplog.text


def test_requests_with_bytes_changed_are_refused_or_answered(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is a mistake of the daemon's (500), and none is served without the token."""
    monkeypatch.setattr(network_listener, "REQUEST_SECONDS", 0.3)  # requests that announce more bytes are cut
    random = Random(1)
    token = net.client("ann")._transport.remote.token  # type: ignore[union-attr]
    whole = (
        f"POST /v1/tokens HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    )
    body = b'{"name": "x", "days": 3}'
    request = f"{whole}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    for _ in range(80):
        changed = bytearray(request)
        for _ in range(random.choice((1, 1, 2, 8))):
            changed[random.randrange(len(changed))] = random.randrange(256)
        with net.connected() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(bytes(changed))
                answer = connection.recv(65536)
                assert b" 500 " not in answer[:40], bytes(changed)
                assert b" 201 " not in answer[:40] or token.encode() in changed, bytes(changed)
    assert net.socket_client().listener()["url"]


def test_forwarded_headers_are_not_believed(net: Net) -> None:
    """The address in the audit log is that of the connection."""
    with net.connected() as connection:
        connection.sendall(
            b"DELETE /v1/clusters/x HTTP/1.1\r\nHost: x\r\n"
            b"X-Forwarded-For: 203.0.113.9\r\nForwarded: for=203.0.113.9\r\n\r\n"
        )
        assert b" 401 " in connection.recv(65536)
    waiting.until(lambda: net.root.audit(Wanted(), 0, None).rows[-1].status == 401, "the entry")
    assert net.root.audit(Wanted(), 0, None).rows[-1].address == "127.0.0.1"


def test_it_is_there_after_a_restart_until_it_is_switched_off(net: Net) -> None:
    before = Path(net.ca).read_bytes()
    net.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", net.port), timeout=5)
    again = Net.__new__(Net)
    again.service, again.port, again.place, again.root = net.service, net.port, net.place, net.root
    app = make_app(net.service.context)
    net.service.context.network = again.listener = NetworkListener(
        app, net.service.context.store, net.place.top / "tls"
    )
    config = uvicorn.Config(app, http=PeerProtocol, ws="none", lifespan="off", log_config=None)
    again.server = DaemonServer(config, again.listener)
    again.thread = threading.Thread(target=again.server.run, args=([listening(net.place.socket, None)],), daemon=True)
    again.start()
    try:
        assert again.client("ann").me()["name"] == "ann"
        assert Path(again.ca).read_bytes() == before
        assert again.socket_client().listen(None)["url"] == ""
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", net.port), timeout=5)
        assert again.service.context.store.setting("listen") == ""
    finally:
        again.stop()


def test_an_address_that_cannot_be_had_leaves_it_as_it_was(net: Net) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, net.socket_client() as client:
        for setting in (
            {"address": "127.0.0.1", "port": taken.getsockname()[1]},
            {"address": "127.0.0.1", "port": net.port, "certificate": "/nonexistent", "key": "/nonexistent"},
        ):
            with pytest.raises(Refused):
                client.listen(setting)
            assert net.client(f"u{setting['port']}{len(setting)}").me()
        for wrong in ({"port": 0}, {"address": "x y"}, {"certificate": "/x"}, {"names": ["*.<b>"]}):
            with pytest.raises(Refused) as caught:
                client.listen({"address": "127.0.0.1", "port": net.port, **wrong})
            assert caught.value.code is Code.USAGE


def test_nobody_sets_it_over_the_network(net: Net) -> None:
    admin = net.client("eve", Role.ADMIN)
    assert admin.listener()["url"] == net.url
    with pytest.raises(Refused) as caught:
        admin.listen(None)
    assert caught.value.code is Code.PERMISSION


def test_a_certificate_of_ones_own(net: Net, tmp_path: Path) -> None:
    certificate, key = tls.own_certificate(tmp_path / "other", {"127.0.0.1"})
    state = net.listen(certificate=str(certificate), key=str(key))
    assert state["ca"] == "" and state["fingerprint"] == ""
    with pytest.raises(LostContact):
        Client.at(net.url, "", net.ca).me()
    with pytest.raises(Refused):
        Client.at(net.url, "", str(tls.authority_path(tmp_path / "other"))).me()


def test_keys_are_roots_alone_and_the_authority_stays(tmp_path: Path) -> None:
    first = tls.own_certificate(tmp_path / "tls", {"a.example"})
    authority, text = tls.authority_path(tmp_path / "tls").read_bytes(), first[0].read_bytes()
    for name in ("ca.key", "server.key"):
        assert (tmp_path / "tls" / name).stat().st_mode & 0o777 == 0o600
    tls.own_certificate(tmp_path / "tls", {"a.example"})
    assert first[0].read_bytes() == text, "it is made again only for a new name"
    tls.own_certificate(tmp_path / "tls", {"a.example", "192.0.2.1"})
    assert first[0].read_bytes() != text
    assert tls.authority_path(tmp_path / "tls").read_bytes() == authority
    first[0].write_text("damaged")
    tls.own_certificate(tmp_path / "tls", {"a.example"})
    assert tls.server_context(*first)
    assert len(tls.fingerprint(tls.authority_path(tmp_path / "tls"))) == 95
    assert {"localhost", "192.0.2.1"} <= tls.own_names("192.0.2.1")
    assert "127.0.0.1" in tls.own_names("0.0.0.0")


def test_urls_that_clients_are_told() -> None:
    url = network_listener.url_of
    assert url(ListenerSetting(address="192.0.2.1", port=1)) == "https://192.0.2.1:1"
    assert url(ListenerSetting(address="2001:db8::1", port=1)) == "https://[2001:db8::1]:1"
    assert url(ListenerSetting(address="::", port=1)) == f"https://{socket.gethostname()}:1"


class TestConfiguration:
    """Where the command line finds the daemon."""

    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        for name in ("WHERRY_URL", "WHERRY_TOKEN", "WHERRY_CA"):
            monkeypatch.delenv(name, raising=False)

    def test_the_file_is_this_users_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert remote.configured() is None
        kept = remote.Remote("https://a.example", "wt-1.secret", "/ca.pem")
        path = remote.save(kept)
        assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
        assert remote.configured() == kept and kept.address == ("a.example", 7443) and "secret" not in repr(kept)
        path.chmod(0o640)
        with pytest.raises(Refused) as caught:
            remote.configured()
        assert caught.value.code is Code.PERMISSION and "chmod 600" in caught.value.next
        monkeypatch.setenv("WHERRY_URL", "")
        assert remote.configured() is None
        monkeypatch.delenv("WHERRY_URL")
        path.chmod(0o600)
        path.write_text("{}")
        with pytest.raises(Refused) as caught:
            remote.configured()
        assert caught.value.code is Code.INVALID_FILE
        assert remote.forget() and not remote.forget()

    @pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
    def test_another_users_file_is_not_read(self) -> None:
        os.chown(remote.save(remote.Remote("https://a.example", "t", "")), 12345, 12345)
        assert remote.configured() is None

    def test_the_token_goes_no_further(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither to jobs and daemons of this machine, nor into the command to type."""
        monkeypatch.setenv("WHERRY_TOKEN", "wt-1.secret")
        monkeypatch.setenv("WHERRY_STATE", "/kept")
        assert "WHERRY_TOKEN" not in identity.environment(identity.owner())
        assert "secret" not in as_root(["up"]) and "WHERRY_STATE=/kept" in as_root(["up"])
        given: dict[str, str] = {}

        def popen(*_words: object, env: dict[str, str], **_more: object) -> None:
            given.update(env)
            raise OSError("nothing is started")

        monkeypatch.setattr("subprocess.Popen", popen)
        with pytest.raises(OSError):
            daemon_process.examine()
        assert given["WHERRY_STATE"] == "/kept" and "WHERRY_TOKEN" not in given

    def test_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        remote.save(remote.Remote("https://a.example", "t", ""))
        monkeypatch.setenv("WHERRY_URL", "https://b.example:99/")
        monkeypatch.setenv("WHERRY_TOKEN", "u")
        found = remote.configured()
        assert found == remote.Remote("https://b.example:99/", "u", "") and found.address == ("b.example", 99)
        for url in ("http://b", "b:7", "https://", "https://u:p@b", "https://b/x", "https://b:0x", "https://b:99999"):
            monkeypatch.setenv("WHERRY_URL", url)
            with pytest.raises(Refused):
                remote.configured()

    def test_certificates_that_are_none(self, tmp_path: Path) -> None:
        with pytest.raises(Refused):
            remote.Remote("https://a", "", str(tmp_path / "none")).context()
        (tmp_path / "rubbish").write_text("x")
        with pytest.raises(Refused):
            remote.Remote("https://a", "", str(tmp_path / "rubbish")).context()

    def test_a_daemon_that_does_not_answer(self, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("wherry.client.transport._REMOTE_PAUSE", 0.01)
        with reserved() as port, pytest.raises(LostContact) as caught:
            Client.at(f"https://127.0.0.1:{port}", "", net.ca).me()
        assert caught.value.code is Code.UNREACHABLE


def test_the_version_is_told(net: Net) -> None:
    with net.connected() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert __version__.encode() in connection.recv(65536)
