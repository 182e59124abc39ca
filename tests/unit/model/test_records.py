"""Records, and the addresses of clusters and nodes."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.base.errors import Code, Refused
from wherry.model.network import HEAD_INDEX, address_of, free_number, mac_of, network_of
from wherry.model.records import Cluster, ClusterState, HostFacts, Move, Phase, Prediction, Round
from wherry.model.spec.cluster import ClusterSpec

POOL = "10.77.0.0/16"


def test_addresses_of_a_cluster() -> None:
    network = network_of(POOL, 3)
    addresses = [address_of(network, index) for index in (0, 249, HEAD_INDEX)]
    assert (network.subnet, addresses) == ("10.77.3.0/24", ["10.77.3.1", "10.77.3.250", "10.77.3.254"])
    cluster = Cluster(
        name="x", spec=ClusterSpec(name="x", nodes=1), state=ClusterState.RUNNING, network=3, subnet=network.subnet,
        head_host="a1", owner_uid=0, owner_gid=0, created=0,
    )  # fmt: skip
    assert cluster.head_address == address_of(network, HEAD_INDEX)


@given(st.integers(1, 255), st.integers(1, 255), st.integers(0, 249), st.integers(0, 249))
def test_addresses_and_macs_are_unique(one: int, two: int, first: int, second: int) -> None:
    a, b = network_of(POOL, one), network_of(POOL, two)
    same = (one, first) == (two, second)
    assert (address_of(a, first) == address_of(b, second)) == same
    assert (mac_of(a, first) == mac_of(b, second)) == same
    assert ipaddress.ip_address(address_of(a, first)) in ipaddress.ip_network(POOL)
    assert int(mac_of(a, first)[:2], 16) & 3 == 2


def test_macs_of_different_pools_differ() -> None:
    """Two instances may use the same hosts, each with a cluster number 1."""
    pools = ("10.77.0.0/16", "10.78.0.0/16", "192.168.0.0/20")
    macs = [mac_of(network_of(pool, number), index) for pool in pools for number in (1, 2) for index in (0, HEAD_INDEX)]
    assert len(set(macs)) == len(macs)


def test_cluster_numbers_are_reused_and_run_out() -> None:
    assert free_number(POOL, []) == 1 and free_number(POOL, [1, 2, 4]) == 3
    with pytest.raises(Refused) as caught:
        free_number(POOL, range(1, 256))
    assert caught.value.code == Code.NO_CAPACITY


def test_move_record_round_trips_through_json() -> None:
    move = Move(
        id="mv-1", node="a-0", cluster="a", source="a1", destination="b1", phase=Phase.COMMIT, created=1.5,
        rounds=(Round(number=1, bytes=10, seconds=0.5, dirty=3),), phases={"freeze": 0.1}, downtime=0.25,
        predicted=Prediction(bytes=1, rounds=0, seconds=2.0, downtime=0.1, basis="x"),
    )  # fmt: skip
    assert Move.model_validate_json(move.model_dump_json()) == move


def test_host_facts_are_serialised_in_order() -> None:
    features = frozenset(f"f{number}" for number in range(50))
    facts = HostFacts(
        kernel="6", architecture="x86_64", cpu_model="x", cpu_features=features, memory=1, runtime="", criu=""
    )
    assert facts.model_dump(mode="json")["cpu_features"] == sorted(features)
    assert HostFacts.model_validate_json(facts.model_dump_json()) == facts


@pytest.mark.parametrize("phase", list(Phase))
def test_phase_determines_the_authoritative_copy(phase: Phase) -> None:
    move = Move(id="m", node="n", cluster="c", source="a", destination="b", phase=phase, created=0)
    assert move.committed == (phase in ("commit", "thaw", "done"))
