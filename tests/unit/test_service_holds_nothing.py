"""Many moves leave nothing in the service: counted when it keeps as many ended operations as it ever does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rest_service import CLUSTER, FABRIC, Service, running

from holdings import held
from wherry.client import Client
from wherry.service import operations

KEPT = operations._KEPT_ENDED
MOVES = 2 * KEPT


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path) as made:
        yield made


def move(client: Client) -> None:
    node = client.nodes("hello")[0]
    client.move(node.name, "a2" if node.host == "b1" else "b1")


def test_neither_descriptors_nor_threads_nor_objects(service: Service) -> None:
    with Client(service.place, start=False) as client:
        client.wait(client.fabric_up(FABRIC, "x").id)
        client.wait(client.up(CLUSTER, "x").id)
        for _ in range(KEPT + 10):
            move(client)
        before = held()
        for _ in range(MOVES):
            move(client)
        grown = held() - before
    assert not {name: number for name, number in grown.items() if number >= MOVES / 2}, "one for every second move"
