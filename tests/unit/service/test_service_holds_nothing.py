"""Many moves leave nothing in the service: counted when it keeps as many ended operations as it may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rest_service import CLUSTER, FABRIC, Service, running

from holdings import held, shown
from wherry.client import Client
from wherry.service import operations

KEPT = 25
MOVES = 2 * KEPT
BATCHES = 8
"""A set with a bound, as a pool of threads on a busy machine, stops growing in one of them."""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(operations, "_KEPT_ENDED", KEPT)
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
        for _ in range(BATCHES):
            before = held()
            for _ in range(MOVES):
                move(client)
            grown = held() - before
            if not (left := {name: number for name, number in grown.items() if number >= MOVES / 2}):
                return
    pytest.fail(f"{BATCHES} times one for every second move: {left}\n{shown(left)}")
