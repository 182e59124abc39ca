"""A balancing that measures is cancelled while it does so, by a user and by the daemon's end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rest_service import CLUSTER, FABRIC, Service, running

import waiting
from wherry.base.errors import Code, WherryError
from wherry.client import Client
from wherry.service.balance_sampling import BalanceSampling


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """That a measurement has begun, which takes a day."""
    begun, measure = threading.Event(), BalanceSampling.measure

    def long(view: BalanceSampling, _seconds: float, pause: Callable[[float], object]) -> Any:
        def paused(seconds: float) -> None:
            begun.set()
            pause(seconds)

        return measure(view, 86_400.0, paused)

    monkeypatch.setattr(BalanceSampling, "measure", long)
    return begun


@pytest.fixture
def service(tmp_path: Path, measuring: threading.Event) -> Iterator[Service]:
    with running(tmp_path, fabric=False) as made, Client(made.place, start=False) as client:
        client.wait(client.fabric_up(FABRIC, "FILE").id)
        client.wait(client.up(CLUSTER, "FILE").id)
        yield made


def test_by_its_user(service: Service, measuring: threading.Event) -> None:
    with Client(service.place, start=False) as client:
        begun = client.begin_balance("hello")
        measuring.wait()
        client.cancel(begun.id)
        with pytest.raises(WherryError) as cancelled:
            client.wait(begun.id)
        assert cancelled.value.code is Code.CANCELLED


def test_by_the_end_of_the_daemon(service: Service, measuring: threading.Event) -> None:
    with Client(service.place, start=False) as client:
        begun = client.begin_balance("hello")
    measuring.wait()
    service.context.operations.close(waiting.bound())
    assert service.context.operations.get(begun.id).state == "cancelled"
