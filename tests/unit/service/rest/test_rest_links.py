"""Links over REST: declared and measured, changed, and refused without an operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rest_service import FABRIC, Service

from wherry.base.errors import WherryError
from wherry.base.units import parse_duration
from wherry.client import Client
from wherry.fabric.fake import FakeFabric
from wherry.model.records import Operation


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.place, start=False) as client:
        client.wait(client.fabric_up(FABRIC, "FILE").id)
        yield client


def figures(client: Client) -> dict[str, Any]:
    (found,) = client.links(measure=True)
    return {way: {k: v for k, v in found["declared"][way].items() if v is not None} for way in ("there", "back")}


def test_a_change_is_of_both_directions_or_of_one(client: Client) -> None:
    assert figures(client) == {"there": {}, "back": {}}
    client.wait(client.set_link("a", "b", {"latency": "10ms", "bandwidth": "1Gbit/s"}).id)
    both = {"latency": 0.01, "bandwidth": 10**9}
    assert figures(client) == {"there": both, "back": both}
    client.wait(client.set_link("b", "a", {"loss": "1%"}, one_way=True).id)
    assert figures(client) == {"there": both, "back": both | {"loss": 0.01}}
    assert client.links()[0]["measured"] == {"latency": 0.01, "latency_back": 0.01, "there": None, "back": None}
    assert any(event.kind == "link.set" and "loss 1%" in event.text for event in client.events())


def test_a_change_takes_nothing_back_that_another_made_a_moment_before(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, first = service.context.operations.start, [True]

    def start(kind: str, *words: Any, **claims: Any) -> Operation:
        if first and first.pop():
            with Client(service.place, start=False) as other:
                other.wait(other.set_link("a", "b", {"bandwidth": "1Gbit/s"}).id)
        return begin(kind, *words, **claims)

    monkeypatch.setattr(service.context.operations, "start", start)
    client.wait(client.set_link("a", "b", {"latency": "10ms"}).id)
    assert figures(client)["there"] == {"latency": 0.01, "bandwidth": 10**9}


def test_one_way_leaves_the_other_as_the_machine_is(client: Client) -> None:
    client.wait(client.set_link("a", "b", {"latency": "10ms"}, one_way=True).id)
    assert figures(client) == {"there": {"latency": 0.01}, "back": {"latency": 0.0}}
    measured = client.links()[0]["measured"]
    assert (measured["latency"], measured["latency_back"]) == (0.01, 0.0)


def test_a_file_with_other_figures_changes_the_links_under_clusters(client: Client) -> None:
    client.wait(client.up({"name": "hello", "nodes": 1}).id)
    other = FABRIC | {"links": [{"between": ["a", "b"], "latency": "5ms"}]}
    client.wait(client.fabric_up(other, "FILE").id)
    assert figures(client)["there"] == {"latency": parse_duration("5ms")}
    with pytest.raises(WherryError, match="cannot be replaced"):
        client.fabric_up(other | {"links": [{"between": ["b", "a"]}]}, "FILE")


def test_other_figures_that_cannot_be_had_leave_row_and_links_as_they_were(service: Service, client: Client) -> None:
    client.wait(client.up({"name": "hello", "nodes": 1}).id)
    fabric = service.context.require_managers().fabric
    assert isinstance(fabric, FakeFabric)
    fabric.fail_at["up"] = "no wires"
    other = FABRIC | {"links": [{"between": ["a", "b"], "latency": "5ms"}]}
    with pytest.raises(WherryError, match="no wires"):
        client.wait(client.fabric_up(other, "FILE").id)
    kept = service.context.store.fabric()
    assert kept == fabric.spec and kept is not None and kept.effective_links()[0].latency is None
    assert fabric.calls[-1] == "relink", "the links of the other figures are made again as before"


def test_why_a_fabric_cannot_be_made_is_told_also_when_it_cannot_be_removed(service: Service, client: Client) -> None:
    fabric = service.context.require_managers().fabric
    assert isinstance(fabric, FakeFabric)
    fabric.fail_at |= {"up": "no wires", "down": "no scissors"}
    with pytest.raises(WherryError, match="up failed") as failed:
        client.wait(client.fabric_up(FABRIC, "FILE").id)
    assert failed.value.why == "no wires"
    client.wait(client.fabric_down().id)


def test_a_daemon_makes_the_links_what_their_row_says(service: Service, client: Client) -> None:
    """The one before it may have been killed after the row and before the wires."""
    fabric = service.context.require_managers().fabric
    assert isinstance(fabric, FakeFabric)
    before = len(fabric.calls)
    service.context.recover()
    assert "relink" in fabric.calls[before:] and "up" not in fabric.calls[before:]


@pytest.mark.parametrize(
    ("sites", "change", "code"),
    [
        (("a", "c"), {"latency": "1ms"}, "NOT_FOUND"),
        (("a", "a"), {"latency": "1ms"}, "NOT_FOUND"),
        (("a", "b"), {"latency": "1"}, "USAGE"),
        (("a", "b"), {"bandwidth": "0Mbit/s"}, "USAGE"),
        (("a", "b"), {"bandwidth": "41Gbit/s"}, "USAGE"),
        (("a", "b"), {"loss": "2"}, "USAGE"),
        (("a", "b"), {"jitter": "1ms"}, "USAGE"),
        (("a", "b"), {"overlay": "ipsec"}, "USAGE"),
        (("a", "b"), {"latancy": "1ms"}, "USAGE"),
    ],
)
def test_what_is_wrong_changes_nothing(
    client: Client, sites: tuple[str, str], change: dict[str, str], code: str
) -> None:
    before = len(client.operations())
    with pytest.raises(WherryError) as error:
        client.set_link(*sites, change)
    assert error.value.code == code and error.value.next
    assert len(client.operations()) == before and figures(client) == {"there": {}, "back": {}}


def test_a_machine_is_not_promised_less_than_libvirt_can_keep_to(client: Client) -> None:
    client.wait(client.up({"name": "vms", "kind": "vm", "nodes": 1, "memory": "128MiB"}).id)
    (node,) = client.nodes("vms")
    other = next(host.name for host in client.hosts() if host.name != node.host)
    with pytest.raises(WherryError, match="cannot be limited to 5 Mbit/s") as refused:
        client.begin_move(node.name, other, bandwidth="5Mbit/s")
    assert refused.value.code == "UNSUPPORTED" and "MiB/s" in refused.value.why
    client.wait(client.begin_move(node.name, other, bandwidth="10Mbit/s").id)


def test_a_node_is_not_made_to_stand_for_days(client: Client) -> None:
    client.wait(client.up({"name": "slow", "nodes": 1, "memory": "128MiB"}).id)
    (node,) = client.nodes("slow")
    other = next(host.name for host in client.hosts() if host.name != node.host)
    with pytest.raises(WherryError, match="would have a downtime of ") as refused:
        client.wait(client.begin_move(node.name, other, bandwidth="1kbit/s").id)
    assert refused.value.code == "UNSUPPORTED" and "--bandwidth" in refused.value.next
    assert client.moves() == [] and client.nodes("slow") == [node]
