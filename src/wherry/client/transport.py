"""HTTP over the daemon's socket.

Invariant: an answer of another version is never interpreted; a problem document is raised as the error it describes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from time import monotonic
from typing import Any

import httpx

from wherry import __version__
from wherry.base.errors import Code, LostContact, Refused, from_dict
from wherry.base.paths import Instance
from wherry.client import daemon_process

_TIMEOUT = 90.0
"""Seconds until an answer counts as missing; a long poll takes up to 30."""
_TRIES, _CRASH_SECONDS = 5, 1.0
"""A request is given up after `_TRIES` daemon crashes in a row, each within `_CRASH_SECONDS` of sending it: the request
may be the cause. A crash after a longer time resets the count."""


class Transport:
    """Requests to the daemon of one instance. With `start` the daemon is started when none runs."""

    def __init__(self, instance: Instance, start: bool = True) -> None:
        self._instance = instance
        self._start = start
        if not daemon_process.answers(instance):
            if not start:
                raise LostContact(Code.UNREACHABLE, "no daemon runs", "", "wherry daemon start")
            daemon_process.start(instance)
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(instance.socket)),
            base_url="http://wherryd",
            headers={"Wherry-Version": __version__},
            timeout=httpx.Timeout(_TIMEOUT, connect=10.0),
        )

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def ask(
        self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None, **query: Any
    ) -> Any:
        """The JSON of the answer. A problem document is raised as its error; UNREACHABLE when there is no answer.

        The request is sent again after a timeout, and to the next daemon when this one is killed. Its idempotency key
        keeps it from beginning a second operation.
        """
        parameters = {key: value for key, value in query.items() if value is not None}
        try:
            answer = self._request(method, path, body, parameters, headers or {})
        except UnicodeEncodeError as error:
            part = error.object[max(0, error.start - 20) : error.end + 20]
            what, why = "the request cannot be sent", f"names and arguments must be UTF-8, and this is not: {part!r}"
            raise Refused(Code.USAGE, what, why, "give it another name, or pass it in a file") from None
        except httpx.HTTPError as error:
            why = f"{self._instance.socket}: {error or type(error).__name__}"
            raise LostContact(Code.UNREACHABLE, "the daemon does not answer", why, "wherry daemon status") from None
        theirs = answer.headers.get("Wherry-Version", "unknown")
        if theirs != __version__:
            why = f"the daemon is {theirs}, this command is {__version__}"
            what = "client and daemon are of different versions"
            raise LostContact(Code.VERSION_MISMATCH, what, why, "wherry daemon stop, then repeat the command")
        if answer.status_code >= 400:
            raise from_dict(_json(answer))
        return _json(answer)

    def _request(
        self, method: str, path: str, body: Any, parameters: dict[str, Any], headers: Mapping[str, str]
    ) -> httpx.Response:
        if method != "GET":
            headers = {"Idempotency-Key": secrets.token_hex(16), **headers}
        tries = _TRIES
        while True:
            tries, sent = tries - 1, monotonic()
            try:
                return self._http.request(method, path, json=body, params=parameters, headers=headers)
            except httpx.TransportError as error:
                if monotonic() - sent > _CRASH_SECONDS and not isinstance(error, httpx.TimeoutException):
                    tries = _TRIES
                if not self._start or not tries:
                    raise
            if not daemon_process.answers(self._instance):
                daemon_process.start(self._instance, resume=True)


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        why = f"status {answer.status_code}: {answer.text[:200]!r}"
        raise LostContact(Code.FAILED, "the daemon's answer is not JSON", why, "wherry daemon status") from None
