"""A balancing that measures for half a minute is cancelled at once, by a user and by the daemon's end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rest_service import CLUSTER, FABRIC, Service, running

from wherry.base.errors import Code, WherryError
from wherry.client import Client


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path, fabric=False) as made, Client(made.place, start=False) as client:
        client.wait(client.fabric_up(FABRIC, "FILE").id)
        client.wait(client.up(CLUSTER, "FILE").id)
        yield made


def test_by_its_user(service: Service) -> None:
    with Client(service.place, start=False) as client:
        began = time.monotonic()
        begun = client.begin_balance("hello", 30)
        client.cancel(begun.id)
        with pytest.raises(WherryError) as cancelled:
            client.wait(begun.id)
        assert cancelled.value.code is Code.CANCELLED and time.monotonic() - began < 10


def test_by_the_end_of_the_daemon(service: Service) -> None:
    with Client(service.place, start=False) as client:
        begun = client.begin_balance("hello", 30)
    began = time.monotonic()
    service.context.operations.close(20)
    assert time.monotonic() - began < 10
    assert service.context.operations.get(begun.id).state == "cancelled"
