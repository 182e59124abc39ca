"""botocore's client of EC2, unmodified, whose requests go to the application of a service in memory."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import botocore.session
import httpx
import pytest
from accounts_world import Accounts
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError

import waiting
from wherry.service.access_keys import AccessKeyCommands
from wherry.service.credentials import PeerCredentials

URL = "https://cloud.test:7443/ec2"
ROOT = PeerCredentials(0, 0, frozenset())


@cache
def _session() -> Any:
    """botocore's session, which reads a model of EC2 of several megabytes once."""
    return botocore.session.Session()


class _Raw(io.BytesIO):
    """The stream from which botocore reads an answer."""

    def stream(self, amount: int = 1024, decode_content: bool | None = None) -> Iterator[bytes]:
        yield self.read()


@dataclass
class Ec2World:
    """Accounts, their access keys, and clients. `sent` are the requests of all clients: headers and body."""

    accounts: Accounts
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    sent: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    def key(self, who: str) -> tuple[str, str]:
        """The id and secret of an access key of an account, made once."""
        if who not in self.keys:
            made, secret = AccessKeyCommands(self.accounts.service.context, ROOT).add(who, "test", 1)
            self.keys[who] = (made.id, secret)
        return self.keys[who]

    def client(self, who: str, region: str = "local", key: tuple[str, str] | None = None) -> Any:
        """botocore's, without retries."""
        id, secret = key or self.key(who)
        client = _session().create_client(
            "ec2", region_name=region, endpoint_url=URL, aws_access_key_id=id, aws_secret_access_key=secret,
            config=Config(retries={"total_max_attempts": 1}, parameter_validation=False),
        )  # fmt: skip
        client.meta.events.register("before-send.ec2", self._send)
        return client

    def _send(self, request: Any, **_: Any) -> AWSResponse:
        headers = {
            name: value.decode() if isinstance(value, bytes) else str(value) for name, value in request.headers.items()
        }
        body = request.body if isinstance(request.body, bytes) else str(request.body).encode()
        self.sent.append((headers, body))
        answer = self.post(headers, body)
        return AWSResponse(request.url, answer.status_code, dict(answer.headers), _Raw(answer.content))

    def post(self, headers: dict[str, str], body: bytes, url: str = URL, method: str = "POST") -> httpx.Response:
        """A request as it is, signed or not."""
        return asyncio.run(self.posted(headers, body, url, method))

    async def posted(
        self, headers: dict[str, str], body: bytes, url: str = URL, method: str = "POST"
    ) -> httpx.Response:
        """The same, on the caller's event loop."""

        async def told(scope: Any, receive: Any, send: Any) -> None:
            await self.accounts.app({**scope, "state": {"network": self.accounts.address}}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(told), timeout=60) as client:  # type: ignore[arg-type]
            return await client.request(method, url, content=body, headers=headers)

    def image(self, who: str = "ann") -> str:
        """The id of the image of containers."""
        found = self.client(who).describe_images(Filters=[{"Name": "name", "Values": ["container"]}])["Images"]
        return str(found[0]["ImageId"])

    def run(self, who: str = "ann", count: int = 2, **more: Any) -> dict[str, Any]:
        """Runs instances, and waits until they run and nothing is under way; the reservation as it is then."""
        words = {"ImageId": self.image(who), "InstanceType": "w1.nano", "MinCount": count, "MaxCount": count, **more}
        made = self.client(who).run_instances(**words)
        found = self.until(who, made["ReservationId"], "running")
        operations = self.accounts.service.context.operations  # the last instance runs before its cluster is made
        for operation in operations.all(running=True):
            operations.wait(operation.id, waiting.bound())
        return found

    def until(self, who: str, reservation: str, state: str) -> dict[str, Any]:
        """A reservation, once all of its instances are in a state."""
        client, filters = self.client(who), filter_of("reservation-id", reservation)

        def look() -> dict[str, Any]:
            (found,) = client.describe_instances(Filters=filters)["Reservations"]
            return dict(found) if {one["State"]["Name"] for one in found["Instances"]} == {state} else {}

        return waiting.until(look, f"{reservation} is {state}")

    def another_key(self) -> None:
        """The same request signed with the same key in the same second would be answered as before, and not done."""
        self.keys.clear()

    def refused(self, who: str, action: str, **words: Any) -> str:
        """The code of the error that an action is answered with."""
        with pytest.raises(ClientError) as caught:
            getattr(self.client(who), action)(**words)
        return code_of(caught.value)


def code_of(error: Any) -> str:
    """The code of botocore's error."""
    return str(error.response["Error"]["Code"])


def ids(reservation: dict[str, Any]) -> list[str]:
    """The ids of a reservation's instances."""
    return [one["InstanceId"] for one in reservation["Instances"]]


def filter_of(name: str, *values: str) -> list[dict[str, Any]]:
    """One filter."""
    return [{"Name": name, "Values": list(values)}]
