"""The EC2 Query API as an ASGI application: the caller, the bounds, one action, its answer, the audit log.

Invariants: nothing is read of a body before its access key is known; only a request with a right signature changes
something, and only if no earlier daemon may have done it; every answer is EC2's XML.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from wherry.base.acting import acting
from wherry.base.clock import now
from wherry.base.errors import Refused, WherryError
from wherry.model.ec2 import LastDate
from wherry.service.account_caller import AccountCaller
from wherry.service.audit import Audit
from wherry.service.context import ServiceContext
from wherry.service.ec2.errors import Ec2Error, of_wherry
from wherry.service.ec2.replays import Answer, Replays
from wherry.service.ec2.signature import Signed, is_right, parsed
from wherry.service.rate_limit import RateLimit, source_of
from wherry.store.access_keys import KeyIdentity

if TYPE_CHECKING:
    from botocore.model import OperationModel

    from wherry.service.ec2.actions import Action
    from wherry.service.ec2.asked import Asked

PATHS = ("/ec2", "/ec2/")
_BODY = 128 * 2**10
"""Bytes of a form: a thousand instances take 40 KiB."""
_ASKING_SECONDS = 30.0
"""How long a launch waits, without a thread, because others contact hosts."""
log = logging.getLogger("wherry.ec2")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Ec2Endpoint:
    """Of an instance. `asking_hosts` bounds the requests that contact hosts."""

    def __init__(self, context: ServiceContext, audit: Audit, asking_hosts: asyncio.Semaphore) -> None:
        self._context, self._audit, self._asking_hosts = context, audit, asking_hosts
        self._wrong_keys = RateLimit(rate=1.0, burst=20.0)
        self._replays = Replays()
        self._launching: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """By uid. A lock lives as long as a request holds it or waits for it."""
        self._dates = threading.Lock()
        self._earlier: dict[int, float] = {}
        self._latest: dict[int, float] = {}
        """By uid: the latest date of an action by an earlier daemon, and by any daemon."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request that came over the network."""
        request, asking = str(uuid.uuid4()), _Asking()
        try:
            answer = await self._answered(scope, receive, request, asking)
        except (Ec2Error, WherryError) as error:
            answer = _refusal(error, request, asking)
        except Exception:
            log.exception("%s", asking.action or "a request")
            failed = Ec2Error("InternalError", "the request failed in an unforeseen way; the daemon's log has it", 500)
            answer = _refusal(failed, request, asking)
        if answer is None:  # the client is gone
            return
        headers = [(b"content-type", b"text/xml;charset=UTF-8"), (b"content-length", str(len(answer.body)).encode())]
        headers.append((b"x-amzn-requestid", request.encode()))
        if not asking.read:  # the rest of the body is on its way
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})
        await self._write_down(scope, asking, answer.status)

    async def _answered(self, scope: Message, receive: Receive, request: str, asking: _Asking) -> Answer | None:
        if scope["method"] != "POST" or scope.get("query_string"):
            asking.read = scope["method"] in ("GET", "HEAD")
            raise Ec2Error(
                "UnsupportedProtocol", "Requests are sent by POST, with their parameters as a form in the body"
            )
        address = str(scope["state"]["network"])
        headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
        signed = self._parsed(headers, address)
        identity, secret = await asyncio.to_thread(self._known, signed, address)
        body = await _read(receive)
        if body is None:
            return None
        asking.read = True
        if not is_right(signed, secret, "POST", scope["path"], headers, body):
            self._refuse_wrong(address)
            what = "The request signature we calculated does not match the signature you provided"
            raise Ec2Error("SignatureDoesNotMatch", what, 403)
        caller = AccountCaller.of(identity.account, identity.projects, address, identity.key.id)
        asking.who = caller.who
        await asyncio.to_thread(self._context.store.access_keys.used, identity.key)
        return await self._act(caller, signed, body, request, asking)

    def _parsed(self, headers: list[tuple[bytes, bytes]], address: str) -> Signed:
        try:
            return parsed(headers, time.time())
        except Ec2Error:
            self._refuse_wrong(address)
            raise

    def _known(self, signed: Signed, address: str) -> tuple[KeyIdentity, str]:
        """Whose key it is, and its secret. AuthFailure."""
        found = self._context.store.access_keys.identity(signed.key)
        if found is None or found.key.expires <= time.time():
            self._refuse_wrong(address)
            what = "The access key does not exist, was revoked, or has ended"
            raise Ec2Error("AuthFailure", f"{what}. Next: wherry key create NAME", 401)
        try:
            return found, self._context.store.sealing.open(signed.key, found.sealed)
        except WherryError as error:
            log.error("%s", error)
            raise Ec2Error("AuthFailure", "The access key cannot be used. Next: wherry key create NAME", 401) from None

    def _refuse_wrong(self, address: str) -> None:
        """RequestLimitExceeded when too many wrong requests came from there."""
        if not self._wrong_keys.take(source_of(address)):
            raise Ec2Error("RequestLimitExceeded", "Too many wrong requests came from your address", 503)

    async def _act(self, caller: AccountCaller, signed: Signed, body: bytes, request: str, asking: _Asking) -> Answer:
        from wherry.service.ec2.asked import Asked  # here: a daemon needs the model of EC2 only when asked
        from wherry.service.rest.authorization import require_role

        operation, action, words = await asyncio.to_thread(_understood, body, asking)
        require_role(caller, action.rule, operation.name)
        asked = Asked(self._context, caller, operation.name, words)

        async def make() -> Answer:
            try:
                return await self._done(asked, action, operation, request)
            except (Ec2Error, WherryError) as error:
                return _refusal(error, request, asking)

        token = acting.set(caller.who)
        try:
            if not action.changes:
                return await make()
            await asyncio.to_thread(self._require_new, caller.uid, signed.dated)
            return await self._replays.once(caller.uid, signed.signature, make, secret=action.secret)
        finally:
            acting.reset(token)

    def _require_new(self, uid: int, dated: float) -> None:
        """RequestExpired if an earlier daemon may have done it. Keeps the latest date for the next one."""
        kept = self._context.store.ec2
        with self._dates:
            if uid not in self._earlier:
                found = kept.one(LastDate, str(uid))
                self._earlier[uid] = self._latest[uid] = found.date if found else 0.0
            if dated <= self._earlier[uid]:
                what = "The daemon was started again after this request was signed. Next: repeat the command"
                raise Ec2Error("RequestExpired", what)
            if dated > self._latest[uid]:
                kept.put(LastDate(id=str(uid), uid=uid, created=now(), date=dated))
                self._latest[uid] = dated

    async def _done(self, asked: Asked, action: Action, operation: OperationModel, request: str) -> Answer:
        from wherry.service.ec2.dialect import answer
        from wherry.service.rest.authorization import require_allowed

        def act() -> bytes:
            require_allowed(asked.caller, action.rule, self._context)
            if not action.changes:
                asked.dry_run()
            return answer(operation, action.do(asked), request)

        if not action.plans:
            return Answer(200, await asyncio.to_thread(act))
        lock = self._launching.setdefault(asked.caller.uid, asyncio.Lock())
        async with lock:
            try:
                async with asyncio.timeout(_ASKING_SECONDS):
                    await self._asking_hosts.acquire()
            except TimeoutError:
                raise Ec2Error("RequestLimitExceeded", "Too many requests contact hosts now", 503) from None
            try:
                return Answer(200, await asyncio.to_thread(act))
            finally:
                self._asking_hosts.release()

    async def _write_down(self, scope: Message, asking: _Asking, status: int) -> None:
        """The entry of the audit log, after the answer: of a request that changes something, or was refused."""
        path = f"{scope['path']}?Action={asking.action}" if asking.action else scope["path"]
        method = "POST" if asking.changes else "GET"
        if self._audit.wants(method, path, _told(status, asking.code), asking.who):
            address, write = str(scope["state"]["network"]), self._audit.write
            await asyncio.to_thread(write, asking.who, address, scope["method"], path, status, code=asking.code)


class _Asking:
    """The audit log's data of a request: the caller, the action, the code of its error. `read`: its body was read."""

    def __init__(self) -> None:
        self.who, self.action, self.code = "", "", ""
        self.changes = self.read = False


def _understood(body: bytes, asking: _Asking) -> tuple[OperationModel, Action, dict[str, Any]]:
    """Operation, action and parameters. InvalidAction also for an action of EC2 that we lack."""
    from wherry.service.ec2.actions import ACTIONS
    from wherry.service.ec2.dialect import fields_of, operation_of, words_of

    fields = fields_of(body)
    operation = operation_of(fields)
    asking.action = operation.name
    action = ACTIONS.get(operation.name)
    if action is None:
        raise Ec2Error("InvalidAction", f"The action {operation.name} is not one of Wherry's: docs/ec2.md lists them")
    asking.changes = action.changes
    return operation, action, words_of(operation, fields)


def _refusal(error: Ec2Error | WherryError, request: str, asking: _Asking) -> Answer:
    from wherry.service.ec2.dialect import error_document

    if isinstance(error, WherryError) and not isinstance(error, Refused):
        log.error("%s of %s: %s", asking.action, asking.who, error)
    told = of_wherry(error) if isinstance(error, WherryError) else error
    asking.code = told.code
    return Answer(told.status, error_document(told, request))


def _told(status: int, code: str) -> int:
    """The status by which the audit log recognises refusals."""
    return 429 if code == "RequestLimitExceeded" else 403 if code == "RequestExpired" else status


async def _read(receive: Receive) -> bytes | None:
    """The whole body; None when the client disconnected before its end. RequestEntityTooLarge."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _BODY:
            raise Ec2Error("RequestEntityTooLarge", f"A request has at most {_BODY >> 10} KiB", 413)
        if not message.get("more_body"):
            return b"".join(parts)
