"""HTTP over the daemon's socket.

Invariant: an answer of a service of another version is never interpreted; every problem becomes the error it describes.
"""

from __future__ import annotations

import secrets
from time import monotonic
from typing import Any

import httpx

from wherry import __version__
from wherry.base.errors import Code, LostContact, from_dict
from wherry.base.paths import Instance
from wherry.client import daemon_process

_LONGEST = 90.0
"""Seconds for an answer: a long poll takes up to 30."""
_TRIES, _SOON = 5, 1.0
"""Gives up after this many daemon crashes in a row, each within so many seconds of the request, which may be the cause.
A daemon that lives longer starts the count anew: a client that waits for a job's output asks for hours."""


class Transport:
    """Requests to the daemon of one instance, which is started when none runs (unless `start` is false)."""

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
            timeout=httpx.Timeout(_LONGEST, connect=10.0),
        )

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def ask(self, method: str, path: str, *, body: Any = None, **query: Any) -> Any:
        """The JSON of the answer. An error of the service is raised as ours; UNREACHABLE when it does not answer.

        A daemon that is killed meanwhile, or does not answer in time, is asked again, or the next one is: an
        idempotency key keeps a request from beginning a second operation.
        """
        parameters = {key: value for key, value in query.items() if value is not None}
        try:
            answer = self._request(method, path, body, parameters)
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

    def _request(self, method: str, path: str, body: Any, parameters: dict[str, Any]) -> httpx.Response:
        headers = {} if method == "GET" else {"Idempotency-Key": secrets.token_hex(16)}
        left = _TRIES
        while True:
            left, asked = left - 1, monotonic()
            try:
                return self._http.request(method, path, json=body, params=parameters, headers=headers)
            except httpx.TransportError as error:
                if monotonic() - asked > _SOON and not isinstance(error, httpx.TimeoutException):
                    left = _TRIES
                if not self._start or not left:
                    raise
            if not daemon_process.answers(self._instance):
                daemon_process.start(self._instance, resume=True)


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        why = f"status {answer.status_code}: {answer.text[:200]!r}"
        raise LostContact(Code.FAILED, "the daemon's answer is not JSON", why, "wherry daemon status") from None
