"""`wherry dashboard`: from the socket to a page over TLS, by a link that signs in once."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from urllib.parse import urlencode, urlsplit

import pytest
from accounts_world import UNLIMITED
from net_world import Net
from rest_service import Service

from ports import reserved
from wherry.base.errors import Code, Refused
from wherry.cli import dashboard as command
from wherry.model.accounts import Role


@pytest.fixture
def net(service: Service) -> Iterator[Net]:
    with reserved() as port:
        net = Net(service, port)
        net.start()
        try:
            yield net
        finally:
            net.stop()


def asked(net: Net, method: str, path: str, body: str = "", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", net.port, timeout=30, context=ssl.create_default_context(cafile=net.ca)
    )
    connection.request(method, path, body or None, headers)
    return connection.getresponse()


def test_a_link_leads_to_the_page(
    net: Net, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Client", net.socket_client)
    with pytest.raises(Refused) as caught:
        command.dashboard()
    assert caught.value.code is Code.WRONG_STATE and caught.value.next == "wherry daemon listen 127.0.0.1:7443"
    net.listen()
    with pytest.raises(Refused) as caught:
        command.dashboard()
    assert caught.value.next == "wherry user add NAME --role admin"
    net.root.add_user("ann", Role.ADMIN, UNLIMITED, None)
    command.dashboard()
    told = capsys.readouterr()
    parts = urlsplit(told.out.strip())
    assert f"{parts.scheme}://{parts.netloc}" == net.url and parts.path == "/web/enter" and "as ann" in told.err
    form = urlencode({"code": parts.fragment})
    headers = {"Origin": net.url, "Content-Type": "application/x-www-form-urlencoded"}
    answer = asked(net, "POST", parts.path, form, **headers)
    assert answer.status == 303 and answer.headers["Location"] == "/web"
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    assert asked(net, "GET", "/web", Cookie=cookie).status == 200
    assert asked(net, "GET", "/web").status == 303
    assert asked(net, "POST", parts.path, form, **headers).status == 401


def test_a_user_who_has_signed_in_opens_its_own(net: Net) -> None:
    net.listen()
    with net.client("bob") as client:
        assert client.sign_in_link()["user"] == "bob"
        with pytest.raises(Refused) as caught:
            client.sign_in_link("ann")
    assert caught.value.code is Code.PERMISSION


def test_events_are_streamed_over_tls(net: Net) -> None:
    net.listen()
    with net.client("ann", Role.ADMIN) as client:
        link = client.sign_in_link()["link"]
    headers = {"Origin": net.url, "Content-Type": "application/x-www-form-urlencoded"}
    answer = asked(net, "POST", "/web/enter", urlencode({"code": urlsplit(link).fragment}), **headers)
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    stream = asked(net, "GET", "/v1/events/stream?after=0", Cookie=cookie)
    assert stream.status == 200 and stream.readline() == b"retry: 1000\n"
    lines = [stream.readline() for _ in range(3)]
    assert lines[1].startswith(b"id: ") and lines[2].startswith(b'data: {"id":')
