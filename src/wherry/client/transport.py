"""HTTP over the daemon's socket, or over TLS.

Invariant: an answer of another version is never interpreted; a problem document is raised as the error it describes.
The standard library speaks it: to import an HTTP library takes longer than most commands.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from wherry.base.errors import Code, LostContact, Refused, from_dict
from wherry.base.paths import Instance
from wherry.base.version import __version__
from wherry.client import daemon_process
from wherry.client.remote import Remote, not_trusted

_TIMEOUT = 90.0
"""Seconds until an answer counts as missing; a long poll takes up to 30."""
_CONNECT_TIMEOUT = 10.0
_TRIES, _CRASH_SECONDS = 5, 1.0
"""A request is given up after `_TRIES` daemon crashes in a row, each within `_CRASH_SECONDS` of sending it: the request
may be the cause. A crash after a longer time resets the count."""
_REMOTE_TRIES, _REMOTE_PAUSE = 3, 0.5
"""How often a request over the network is sent, and the seconds in between."""

_UNKNOWN = "unknown"
_NEXT = re.compile('<(/v1/[^>]*)>; rel="next"')


class Answer(NamedTuple):
    """An answer of the daemon."""

    status: int
    version: str
    body: bytes
    next: str = ""
    """Path and query of a list's next page."""


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("wherryd", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_CONNECT_TIMEOUT)
        self.sock.connect(self._path)
        self.sock.settimeout(_TIMEOUT)


def send(path: str, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
    """One request on a connection of its own: none is found closed by the daemon, and threads share none."""
    return _exchanged(_Connection(path), method, target, body, headers)


def send_remote(remote: Remote, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
    """The same over TLS."""
    host, port = remote.address
    connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=remote.context())
    own = {"Authorization": f"Bearer {remote.token}"} if remote.token else {}
    return _exchanged(connection, method, target, body, {**headers, **own})


def _exchanged(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
) -> Answer:
    try:
        with suppress(BrokenPipeError):  # it was answered and closed before all of it was read, as a standby does
            connection.request(method, target, body, {**headers, "Connection": "close"})
        answer = connection.getresponse()
        link = _NEXT.match(answer.headers.get("Link", ""))
        version = answer.headers.get("Wherry-Version", _UNKNOWN)
        return Answer(answer.status, version, answer.read(), link[1] if link else "")
    finally:
        connection.close()


class Transport:
    """Requests to the daemon of one instance. With `start` the daemon is started when none runs. With a `remote` they
    go there, whatever the instance."""

    def __init__(self, instance: Instance, start: bool = True, remote: Remote | None = None) -> None:
        self._instance = instance
        self._start = start
        self.remote = remote
        if remote:
            return
        if not daemon_process.answers(instance):
            if not start:
                raise LostContact(Code.UNREACHABLE, "no daemon runs", "", "wherry daemon start")
            daemon_process.start(instance)

    def ask(
        self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Any:
        """The JSON of the answer. A problem document is raised as its error; UNREACHABLE when there is no answer.

        The request is sent again after a timeout, and to the next daemon when this one is killed. Its idempotency key
        keeps it from beginning a second operation.
        """
        return _json(self._answer(method, path, query, body, headers))

    def pages(self, path: str, **query: Any) -> Iterator[list[Any]]:
        """The pages of a list, each asked for when it is wanted."""
        answer = self._answer("GET", path, query)
        yield _json(answer)
        while answer.next:
            answer = self._answer("GET", answer.next)
            yield _json(answer)

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """An answer that is no error. Without a `query`, `path` is of an answer's `next`."""
        try:
            target = path if query is None else _target(path, query)
            answer = self._request(method, target, _encoded(body), headers or {})
        except UnicodeEncodeError as error:
            part = error.object[max(0, error.start - 20) : error.end + 20]
            what, why = "the request cannot be sent", f"names and arguments must be UTF-8, and this is not: {part!r}"
            raise Refused(Code.USAGE, what, why, "give it another name, or pass it in a file") from None
        except (OSError, http.client.HTTPException) as error:
            where = self.remote.url if self.remote else self._instance.socket
            why, next = f"{where}: {error or type(error).__name__}", "wherry daemon status"
            raise LostContact(Code.UNREACHABLE, "the daemon does not answer", why, next) from None
        if answer.version != __version__:
            why = f"the daemon is {answer.version}, this command is {__version__}"
            what = "client and daemon are of different versions"
            remedy = "install the daemon's version" if self.remote else "wherry daemon stop, then repeat the command"
            raise LostContact(Code.VERSION_MISMATCH, what, why, remedy)
        if answer.status >= 400:
            raise from_dict(_json(answer))
        return answer

    def _request(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        headers = {"Wherry-Version": __version__, **headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if method != "GET":
            headers = {"Idempotency-Key": os.urandom(16).hex(), **headers}
        if self.remote:
            return self._request_remote(self.remote, method, target, body, headers)
        tries = _TRIES
        while True:
            tries, sent = tries - 1, monotonic()
            try:
                answer = send(str(self._instance.socket), method, target, body, headers)
                if answer.status == 500 and answer.version == _UNKNOWN:  # the server's answer when it is stopped
                    raise ConnectionResetError("the daemon ended")
                return answer
            except (OSError, http.client.HTTPException) as error:
                if monotonic() - sent > _CRASH_SECONDS and not isinstance(error, TimeoutError):
                    tries = _TRIES
                if not self._start or not tries:
                    raise
            if daemon_process.has_ended(self._instance):
                daemon_process.start(self._instance, resume=True)

    def _request_remote(
        self, remote: Remote, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """Its idempotency key makes it safe to send a request again."""
        for left in range(_REMOTE_TRIES - 1, -1, -1):
            try:
                return send_remote(remote, method, target, body, headers)
            except ssl.SSLCertVerificationError as error:
                raise not_trusted(remote, error) from None
            except (OSError, http.client.HTTPException):
                if not left:
                    raise
                sleep(_REMOTE_PAUSE)
        raise AssertionError("the last try returns or raises")


def _target(path: str, query: Mapping[str, Any]) -> str:
    """Path and query; a parameter that is None is left out, a list is repeated."""
    words = {key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()}
    text = urlencode({key: value for key, value in words.items() if value is not None}, doseq=True)
    return quote(path, safe="/:@!$&'()*+,;=~") + (f"?{text}" if text else "")


def _encoded(body: Any) -> bytes | None:
    return (
        None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    )


def _json(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError:
        why = f"status {answer.status}: {answer.body[:200].decode(errors='replace')!r}"
        raise LostContact(Code.FAILED, "the daemon's answer is not JSON", why, "wherry daemon status") from None
