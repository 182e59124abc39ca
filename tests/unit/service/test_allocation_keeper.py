"""Hosts join and leave as allocations come and go: flags, announced drains, the next allocation, events."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

import httpx
import pytest
from rest_service import CLUSTER, Service, ended

from wherry.base.clock import now
from wherry.base.errors import Code, Failed, LostContact, WherryError
from wherry.cluster.lookup import ALLOCATED, DRAINED, LOST, announced
from wherry.model.allocations import Allocation
from wherry.model.network import ClusterNetwork
from wherry.model.records import Move, OperationState, Phase
from wherry.service import allocation_keeper
from wherry.service.allocation_keeper import AllocationKeeper


class Batch:
    """A batch system whose answers are set by the test."""

    asks, leave, early = True, 300.0, 1800.0

    def __init__(self) -> None:
        self.found: list[Allocation] = []
        self.error: WherryError | None = None
        self.trouble: dict[str, str] = {}
        self.did: list[str] = []
        self.silent: set[str] = set()
        self.stuck: set[str] = set()

    def restore(self, hosts: Collection[str]) -> None:
        self.did.append(f"restore {sorted(hosts)}")

    def look(self) -> list[Allocation]:
        if self.error:
            raise self.error
        return self.found

    def troubles(self) -> dict[str, str]:
        return self.trouble

    def ask(self) -> int:
        if self.error:
            raise self.error
        self.did.append("ask")
        return 7

    def release(self, id: int) -> None:
        self.did.append(f"release {id}")

    def prepare(self, hosts: Collection[str]) -> None:
        self.did.append(f"prepare {', '.join(sorted(hosts))}")

    def admit(self, host: str) -> None:
        if host in self.silent:
            raise LostContact(Code.UNREACHABLE, f"host {host} cannot be reached by SSH", "no route")
        self.did.append(f"admit {host}")

    def dismiss(self, host: str, empty: bool) -> None:
        if host in self.stuck or host in self.silent and not empty:
            raise LostContact(Code.UNREACHABLE, f"host {host} cannot be reached by SSH", "no route")
        self.did.append(f"dismiss {host}{'' if empty else ' with nodes'}")

    def connect(self, networks: Callable[[], Sequence[ClusterNetwork]]) -> None:
        self.did.append(f"connect {len(networks())}")

    def taken(self) -> list[str]:
        """The acts since the last call."""
        done, self.did = self.did, []
        return done


@pytest.fixture
def batch(http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """A cluster with a node on each of the three hosts, which a batch system allocates."""
    monkeypatch.setattr(allocation_keeper, "_TROUBLES_EVERY", 0.0)
    ended(http, http.post("/v1/clusters", json={"spec": CLUSTER}))
    made = Batch()
    context = service.context
    context._managers = dataclasses.replace(context.require_managers(), allocations=made)
    return made


def told(http: httpx.Client) -> list[str]:
    kinds = ("host.joined", "host.left", "allocation.", "host.drain")
    return [
        f"{each['kind']}: {each['text']}" for each in http.get("/v1/events").json() if each["kind"].startswith(kinds)
    ]


def test_hosts_join_and_are_drained_before_the_end(http: httpx.Client, service: Service, batch: Batch) -> None:
    keeper, store = AllocationKeeper(service.context), service.context.store
    batch.found = [Allocation(1, False)]
    keeper.run_once()
    assert batch.taken() == ["connect 1"] and not store.host_flag("a1", ALLOCATED)
    batch.found = [Allocation(1, True, ("a1", "a2"), 3600.0)]
    keeper.run_once()
    assert batch.taken() == ["prepare a1, a2", "admit a1", "admit a2", "connect 1"]
    for host in ("a1", "a2"):
        coming = announced(store.host_flags(host))
        assert store.host_flag(host, ALLOCATED) and coming
        assert coming.at == pytest.approx(now() + 3300, abs=5) and coming.why == "Slurm's job 1 ends"
    assert any("a1 joins with Slurm's job 1, which ends at 2" in text for text in told(http))
    keeper.run_once()
    AllocationKeeper(service.context).run_once()  # the next daemon's
    assert batch.taken() == ["connect 1"]  # by the latter, which does not know
    batch.found = [Allocation(1, True, ("a1", "a2"), 7200.0)]  # somebody gave it more time
    keeper.run_once()
    longer = announced(store.host_flags("a1"))
    assert longer and longer.at == pytest.approx(now() + 6900, abs=5)


def test_next_allocation_is_asked_for_once(http: httpx.Client, service: Service, batch: Batch) -> None:
    keeper = AllocationKeeper(service.context)
    first = Allocation(1, True, ("a1", "a2", "b1"), 1700.0)
    batch.found = [first]
    keeper.run_once()
    batch.taken()
    keeper.run_once()
    assert batch.taken() == ["ask"]
    batch.found = [first, Allocation(7, False)]
    keeper.run_once()
    assert batch.taken() == []
    assert any("Slurm's job 7 is asked for" in text for text in told(http))


def test_reasons_for_which_an_allocation_waits_are_told_once(
    http: httpx.Client, service: Service, batch: Batch
) -> None:
    keeper = AllocationKeeper(service.context)
    for why in ("", "Priority", "Resources", "Priority"):
        batch.found = [Allocation(1, False, why=why)]
        keeper.run_once()
    said = [text for text in told(http) if text.startswith("allocation.waits")]
    assert sorted(said) == [
        f"allocation.waits: Slurm's job 1 waits for nodes ({why})" for why in ("Priority", "Resources")
    ]


def test_hosts_that_end_with_nodes_are_lost_with_them(http: httpx.Client, service: Service, batch: Batch) -> None:
    keeper, store = AllocationKeeper(service.context), service.context.store
    batch.found = [Allocation(1, True, ("a1", "a2", "b1"), 7200.0)]
    keeper.run_once()
    batch.taken()
    batch.found = [Allocation(1, True, ("a2", "b1"), 7190.0)]
    keeper.run_once()
    assert "dismiss a1 with nodes" in batch.taken()
    assert store.host_flags("a1") == [LOST]
    (text,) = [text for text in told(http) if text.startswith("host.left")]
    assert "its allocation has ended" in text and "are lost" in text
    batch.found = [Allocation(2, True, ("a1",), 7200.0), *batch.found]
    keeper.run_once()
    assert not store.host_flag("a1", LOST) and store.host_flag("a1", ALLOCATED)


def test_host_that_ends_and_is_silent_keeps_its_nodes(http: httpx.Client, service: Service, batch: Batch) -> None:
    """They may run there, so none is made elsewhere until somebody vouches for that, or a lease does."""
    keeper, store = AllocationKeeper(service.context), service.context.store
    batch.found = [Allocation(1, True, ("a1",), 7200.0)]
    keeper.run_once()
    batch.found, batch.silent = [], {"a1"}
    keeper.run_once()
    assert store.host_flag("a1", ALLOCATED) and store.host_flag("a1", DRAINED) and not store.host_flag("a1", LOST)
    assert any("wherry host lost a1" in text for text in told(http))
    assert not [each for each in service.context.operations.all(False) if each.kind == "host lost"]


def test_host_that_ends_and_is_silent_is_declared_lost_where_it_has_a_lease(
    http: httpx.Client, service: Service, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, store = AllocationKeeper(service.context), service.context.store
    fabric = service.context.require_managers().fabric
    monkeypatch.setattr(fabric, "spec", fabric.spec.model_copy(update={"lease": 30.0}))
    batch.found = [Allocation(1, True, ("a1",), 7200.0)]
    keeper.run_once()
    fabric.set_down("a1", True)
    batch.found, batch.silent = [], {"a1"}
    keeper.run_once()
    (lost,) = [each for each in service.context.operations.all(False) if each.kind == "host lost"]
    assert lost.target == "a1"
    assert service.context.operations.wait(lost.id, 20).state is not OperationState.RUNNING
    assert store.host_flag("a1", LOST)


def test_empty_hosts_leave_and_the_allocation_is_given_back(http: httpx.Client, service: Service, batch: Batch) -> None:
    keeper, store = AllocationKeeper(service.context), service.context.store
    ended(http, http.delete("/v1/clusters/hello"))
    batch.found = [Allocation(1, True, ("a1",), 3600.0)]
    keeper.run_once()
    store.set_host_flag("a1", DRAINED, True)
    batch.found = [Allocation(1, True, ("a1",), 200.0)]
    batch.taken()
    keeper.run_once()
    assert batch.taken() == ["dismiss a1", "connect 0", "release 1"]
    assert store.host_flags("a1") == []


def test_allocation_is_kept_while_a_host_cannot_leave(http: httpx.Client, service: Service, batch: Batch) -> None:
    keeper, store = AllocationKeeper(service.context), service.context.store
    ended(http, http.delete("/v1/clusters/hello"))
    batch.found = [Allocation(1, True, ("a1",), 3600.0)]
    keeper.run_once()
    store.set_host_flag("a1", DRAINED, True)
    batch.found, batch.stuck = [Allocation(1, True, ("a1",), 200.0)], {"a1"}
    batch.taken()
    keeper.run_once()
    assert batch.taken() == [] and store.host_flag("a1", ALLOCATED)


def test_moves_of_a_host_that_ends_are_settled(
    http: httpx.Client, service: Service, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `host lost`: nobody waits for the host, though no node is there."""
    keeper, store = AllocationKeeper(service.context), service.context.store
    batch.found = [Allocation(1, True, ("a1", "a2"), 7200.0)]
    keeper.run_once()
    ended(http, http.delete("/v1/clusters/hello"))
    move = Move(id="m1", node="n", cluster="c", source="a2", destination="a1", phase=Phase.TRANSFER, created=now())
    monkeypatch.setattr(store, "moves", lambda **_: [move])
    batch.found = [Allocation(1, True, ("a2",), 7190.0)]
    batch.taken()
    keeper.run_once()
    assert "dismiss a1 with nodes" in batch.taken() and store.host_flags("a1") == [LOST]


def test_drain_follows_the_allocation_that_the_host_is_in(http: httpx.Client, service: Service, batch: Batch) -> None:
    """The daemon was away while the first one ended, and the host was in the next."""
    keeper, store = AllocationKeeper(service.context), service.context.store
    batch.found = [Allocation(1, True, ("a1",), 3600.0)]
    keeper.run_once()
    batch.found = [Allocation(2, True, ("a1",), 7200.0)]
    AllocationKeeper(service.context).run_once()
    coming = announced(store.host_flags("a1"))
    assert coming and coming.why == "Slurm's job 2 ends" and coming.at == pytest.approx(now() + 6900, abs=5)


def test_nothing_changes_while_slurm_is_silent(http: httpx.Client, service: Service, batch: Batch) -> None:
    keeper, store = AllocationKeeper(service.context), service.context.store
    batch.found = [Allocation(1, True, ("a1",), 3600.0)]
    keeper.run_once()
    batch.taken()
    batch.error = Failed(Code.FAILED, "Slurm's jobs cannot be listed", "Unable to contact slurm controller")
    keeper.run_once()
    keeper.run_once()
    assert batch.taken() == [] and store.host_flag("a1", ALLOCATED)
    assert len([text for text in told(http) if "Unable to contact" in text]) == 1


def test_host_that_cannot_join_is_told_once_and_tried_again(
    http: httpx.Client, service: Service, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, store = AllocationKeeper(service.context), service.context.store
    batch.silent, batch.found = {"a1"}, [Allocation(1, True, ("a1",), 3600.0)]
    keeper.run_once()
    keeper.run_once()
    assert not store.host_flag("a1", ALLOCATED) and announced(store.host_flags("a1")) is None
    assert len([text for text in told(http) if "it cannot join" in text]) == 1
    batch.silent = set()
    monkeypatch.setattr(keeper, "_later", {})
    keeper.run_once()
    assert store.host_flag("a1", ALLOCATED)


def test_host_that_slurm_drains_is_drained(http: httpx.Client, service: Service, batch: Batch) -> None:
    keeper, store = AllocationKeeper(service.context), service.context.store
    batch.found = [Allocation(1, True, ("a1", "a2"), 3600.0)]
    keeper.run_once()
    batch.trouble = {"a1": "DRAIN, disk is bad"}
    keeper.run_once()
    coming = announced(store.host_flags("a1"))
    assert coming and coming.at <= now() + 1 and coming.why == "Slurm: DRAIN, disk is bad"
    keeper.run_once()  # and the steps of the allocation do not put it off
    again = announced(store.host_flags("a1"))
    assert again and again.at == coming.at
    assert len([text for text in told(http) if "Slurm reports of a1" in text]) == 1
