"""Drains that are announced: their times, that they are kept, by the next daemon too, and their effect without room."""

from __future__ import annotations

from datetime import datetime
from unittest.mock import Mock

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rest_service import CLUSTER, Service, ended

from properties import examples
from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.base.moments import moment, parse_moment
from wherry.cluster.lookup import Announced, announced
from wherry.model.records import Move, OperationState, Phase
from wherry.service import announced_drains
from wherry.service.announced_drains import AnnouncedDrains
from wherry.service.host_commands import set_announced

_NOW = datetime(2026, 11, 27, 12, 0).timestamp()


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("+2h", datetime(2026, 11, 27, 14, 0)),
        ("+30s", datetime(2026, 11, 27, 12, 0, 30)),
        ("12:01", datetime(2026, 11, 27, 12, 1)),
        ("12:00", datetime(2026, 11, 28, 12, 0)),
        ("06:00", datetime(2026, 11, 28, 6, 0)),
        ("2026-12-24T06:00", datetime(2026, 12, 24, 6, 0)),
        ("2026-12-24 06:00:30", datetime(2026, 12, 24, 6, 0, 30)),
    ],
)
def test_times_as_people_write_them(text: str, then: datetime) -> None:
    assert parse_moment(text, _NOW) == then.timestamp()


@pytest.mark.parametrize("text", ["", "soon", "25:00", "+2", "+x", "2026-11-27T11:59", "2036-01-01T00:00", "1:2:3"])
def test_what_is_no_time_to_come_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        parse_moment(text, _NOW)


@given(st.text(max_size=24))
@settings(max_examples=examples(200))
def test_any_text_is_a_time_to_come_or_refused(text: str) -> None:
    try:
        at = parse_moment(text, _NOW)
    except ValueError:
        return
    assert _NOW < at and moment(at)


def test_announcement_is_a_flag() -> None:
    coming = Announced(1764270000.0, "allocation 12 ends")
    assert announced(["drained", coming.flag, "took n1"]) == coming
    assert announced(["drained", "took n1"]) is None


def test_announced_drain_is_kept(http: httpx.Client, service: Service) -> None:
    nodes = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))["result"]["nodes"]
    host, at = nodes[0]["host"], now() + 3600
    drains = AnnouncedDrains(service.context)
    assert ended(http, http.post(f"/v1/hosts/{host}/drain", json={"at": at}))["state"] == "done"
    drains.run_once()
    shown = {each["name"]: each for each in http.get("/v1/hosts").json()}[host]
    assert shown["drain_at"] == pytest.approx(at, abs=1) and not shown["drained"]
    set_announced(service.context.store, host, Announced(now() - 1, "announced maintenance"))
    following = AnnouncedDrains(service.context)  # the next daemon's
    following.run_once()
    _await_drains(service)
    following.run_once()
    assert announced(service.context.store.host_flags(host)) is None
    assert all(node["host"] != host for node in http.get("/v1/nodes").json())
    kinds = {event["kind"]: event["text"] for event in http.get("/v1/events").json()}
    assert "host.drain-announced" in kinds and "host.drained" in kinds
    assert "announced maintenance" in kinds["host.drain"] and "goes to" in kinds["host.drain"]
    assert ended(http, http.post(f"/v1/hosts/{host}/restore"))["state"] == "done"
    assert service.context.store.host_flags(host) == []


def test_host_that_cannot_be_drained_is_not_said_to_be(
    http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has tiles and no nodes, or a node is on its way to it."""
    monkeypatch.setattr(announced_drains, "_AGAIN", 0.0)
    store, drains = service.context.store, AnnouncedDrains(service.context)
    store.set_host_flag("a1", Announced(now() - 1, "a test").flag, True)
    tiles = Refused(Code.WRONG_STATE, "host a1 cannot be drained", "tiles run there")
    with monkeypatch.context() as patched:
        patched.setattr(service.context, "refuse_use_by_components", Mock(side_effect=tiles))
        drains.run_once()
        drains.run_once()
    assert announced(store.host_flags("a1"))
    drains.run_once()
    _await_drains(service)
    move = Move(id="m1", node="n", cluster="c", source="a2", destination="a1", phase=Phase.TRANSFER, created=now())
    with monkeypatch.context() as patched:
        patched.setattr(store, "moves", lambda **_: [move])
        drains.run_once()
    assert announced(store.host_flags("a1"))
    kinds = [event["kind"] for event in http.get("/v1/events").json()]
    assert kinds.count("host.drain-delayed") == 1 and "host.drained" not in kinds
    _await_drains(service)
    drains.run_once()
    assert announced(store.host_flags("a1")) is None


def test_announcement_is_replaced_and_taken_back(http: httpx.Client, service: Service) -> None:
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    store, at = service.context.store, now() + 3600
    for seconds in (at, at + 60):
        ended(http, http.post("/v1/hosts/a1/drain", json={"at": seconds}))
    found = announced(store.host_flags("a1"))
    assert found and found.at == pytest.approx(at + 60, abs=1)
    assert len([flag for flag in store.host_flags("a1") if flag.startswith("drain at")]) == 1
    ended(http, http.post("/v1/hosts/a1/restore"))
    assert store.host_flags("a1") == []
    for wrong in (1.0, -1.0, 1e300, "soon"):
        refused = http.post("/v1/hosts/a1/drain", json={"at": wrong})
        assert refused.status_code == 422 and refused.json()["code"] == "USAGE"


def test_announced_drain_without_room_moves_what_it_can_and_says_what_stays(
    http: httpx.Client, service: Service
) -> None:
    """Hosts have room for one such node each."""
    nodes = ended(http, http.post("/v1/clusters", json={"spec": CLUSTER | {"cpus": 2}}))["result"]["nodes"]
    stays = next(node["name"] for node in nodes if node["host"] == "a1")
    store = service.context.store
    store.set_host_flag("a1", Announced(now() - 1, "a test").flag, True)
    drains = AnnouncedDrains(service.context)
    drains.run_once()
    _await_drains(service)
    text = next(event["text"] for event in http.get("/v1/events").json() if event["kind"] == "host.drain")
    assert f"{stays} stays" in text and "(a test)" in text
    assert store.host_flag("a1", "drained") and announced(store.host_flags("a1"))


def _await_drains(service: Service) -> None:
    """Until the latest drain has ended."""
    operations = service.context.operations
    drains = [each for each in operations.all(False) if each.kind == "host drain"]
    assert operations.wait(drains[-1].id, 20).state is not OperationState.RUNNING
