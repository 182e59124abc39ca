"""Balancing over REST, on nodes in memory: what is refused, that looking changes nothing, and the daemon's setting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rest_service import CLUSTER, FABRIC, Service, running

from wherry.base.errors import Code, WherryError
from wherry.client import Client
from wherry.model.balance import BalancePlan, Kind, ProposedMove, Verdict
from wherry.service.balance import carry_out, start
from wherry.service.balance_auto import AutoBalance


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path) as made, Client(made.place, start=False) as client:
        client.wait(client.fabric_up(FABRIC, "FILE").id)
        client.wait(client.up(CLUSTER, "FILE").id)
        yield made


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.place, start=False) as made:
        yield made


def test_clusters_without_jobs_are_idle_and_left(client: Client) -> None:
    nodes = client.nodes()
    for found in (client.balance(None, 0.01), client.balance("hello", 0.01, 60.0)):
        assert [(v.cluster, v.kind, v.moves) for v in found.verdicts] == [("hello", Kind.IDLE, ())]
    done = client.wait(client.begin_balance("hello", 0.01).id).result or {}
    assert done["moves"] == [] and client.nodes() == nodes
    assert any(event.kind == "balance.decision" for event in client.events())


@pytest.mark.parametrize(("cluster", "seconds", "code"), [("nobody", 1, Code.NOT_FOUND), (None, 31, Code.USAGE)])
def test_what_is_refused(client: Client, cluster: str | None, seconds: float, code: Code) -> None:
    before = client.operations()
    for ask in (client.balance, client.begin_balance):
        with pytest.raises(WherryError) as caught:
            ask(cluster, seconds)
        assert caught.value.code == code
    assert client.operations() == before
    with pytest.raises(WherryError) as caught:
        client.profile("job-0")
    assert caught.value.code == Code.NOT_FOUND


def test_the_setting_is_kept_and_told_once(client: Client) -> None:
    assert client.auto_balance() is False
    assert client.auto_balance(True) and client.auto_balance(True) and client.auto_balance()
    assert client.auto_balance(False) is False
    assert [event.kind for event in client.events()].count("balance.auto") == 2


def proposed(client: Client, text: str = "it pays 3 s") -> Verdict:
    node = client.nodes()[0]
    other = next(host.name for host in client.hosts() if host.name != node.host)
    move = ProposedMove(
        node=node.name, source=node.host, destination=other, reason="room", bytes=1, seconds=1.0, downtime=0.1
    )
    return Verdict(cluster="hello", kind=Kind.NETWORK, text=text, before=9.0, after=3.0, moves=(move,))


def test_a_plan_is_carried_out_and_written_down(service: Service, client: Client) -> None:
    verdict = proposed(client)
    plan, cell = BalancePlan(verdicts=(verdict,)), service.cell
    operation = start(cell, "hello", ["hello"], lambda task: carry_out(cell, task, plan), 0)
    assert len((client.wait(operation.id).result or {})["moves"]) == 1
    assert client.nodes()[0].host == verdict.moves[0].destination
    (event,) = [event for event in client.events() if event.kind == "balance.decision"]
    assert event.text == verdict.text and event.data["numbers"]["after"] == 3.0 and event.data["moves"]  # type: ignore[index]


def test_the_daemon_acts_on_what_two_measurements_say_and_repeats_no_event(service: Service, client: Client) -> None:
    balancing = AutoBalance(service.cell)
    first, second = proposed(client), proposed(client, "it pays 4 s")
    balancing._decide(BalancePlan(verdicts=(first,)))
    assert client.moves() == [], "one measurement is not enough"
    stays = first.model_copy(update={"moves": (), "text": "1 of 2 fit"})
    for text in ("1 of 2 fit", "0 of 2 fit", "its node is pinned"):
        balancing._decide(BalancePlan(verdicts=(stays.model_copy(update={"text": text}),)))
    said = [event.text for event in client.events() if event.kind == "balance.decision"]
    assert said[-2:] == ["1 of 2 fit", "its node is pinned"] and len(said) == 3
    balancing._decide(BalancePlan(verdicts=(first,)))
    balancing._decide(BalancePlan(verdicts=(second,)))
    (operation,) = [operation for operation in client.operations() if operation.kind == "balance"]
    client.wait(operation.id)
    assert [move.node for move in client.moves()] == [first.moves[0].node]
