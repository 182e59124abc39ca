"""A fabric that has a row and is not on the machine, as after a reboot: command errors, and how it is made again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest_service import CLUSTER, Service, ended, running

from wherry.fabric.fake import FakeFabric


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path) as found:
        yield found


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(service.place.socket)), base_url="http://wherryd", timeout=60
    ) as client:
        assert ended(client, client.post("/v1/clusters", json={"spec": CLUSTER}))["state"] == "done"
        yield client


def fabric_of(service: Service) -> FakeFabric:
    assert service.context.managers
    fabric: Any = service.context.managers.fabric
    return fabric


def test_up_makes_the_fabric_again(http: httpx.Client, service: Service) -> None:
    fabric = fabric_of(service)
    fabric.down()
    refused = http.post("/v1/moves", json={"node": "hello-0", "host": "a2"}).json()
    assert refused["code"] == "WRONG_STATE" and refused["next"] == "wherry up FILE, or: wherry fabric up FILE"
    planned = http.post("/v1/clusters", json={"spec": CLUSTER, "dry_run": True})
    assert planned.status_code == 200 and not fabric.is_up()
    assert ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["state"] == "done"
    assert fabric_of(service) is fabric and fabric.is_up()
    assert fabric.networks and http.get("/v1/clusters").json()[0]["state"] == "running"


def test_one_that_cannot_be_made_says_why(http: httpx.Client, service: Service) -> None:
    fabric = fabric_of(service)
    fabric.down()
    fabric.fail_at["up"] = "no such device"
    found = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    assert found["state"] == "failed" and found["error"]["why"] == "no such device"
