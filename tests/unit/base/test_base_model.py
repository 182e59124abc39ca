"""Records, addresses, units and errors; pre-copy policy and forecast."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.base import ids
from wherry.base.errors import Code, Failed, LostContact, Refused, WherryError, from_dict
from wherry.base.ids import new_id
from wherry.base.units import format_duration, format_rate, format_size, parse_duration, parse_size
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.network import HEAD_INDEX, address_of, free_number, mac_of, network_of
from wherry.model.records import Cluster, ClusterState, HostFacts, Move, Phase, Prediction, Round
from wherry.model.spec.cluster import ClusterSpec
from wherry.move.forecast import forecast
from wherry.move.precopy_policy import MAX_ROUNDS, another_round, switches_to_post_copy
from wherry.node.protocol import Measured

TOP = Path(__file__).resolve().parents[3]
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


@pytest.mark.parametrize("code", list(Code))
def test_errors_round_trip_through_dicts(code: Code) -> None:
    error = from_dict(WherryError(code, "what", "why", "next").to_dict())
    assert (error.code, error.what, error.why, error.next) == (code, "what", "why", "next")
    kinds = {2: Refused, 3: Refused, 4: Refused, 5: Refused, 7: LostContact}
    assert type(error) is kinds.get(code.exit_code, Failed)
    assert 400 <= code.http_status < 600 and 0 < code.exit_code <= 130


def test_ids_sort_by_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of one millisecond, and when the clock is set back."""
    made = [new_id("mv") for _ in range(100)]
    monkeypatch.setattr(ids.time, "time", lambda: 1.0)
    made += [new_id("mv") for _ in range(100)]
    assert made == sorted(set(made)) and len({len(one) for one in made}) == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("1B", 1), ("1KB", 10**3), ("1kB", 10**3), ("1MB", 10**6), ("1GB", 10**9), ("1TB", 10**12), ("1.5TB", 15 * 10**11)]
    + [("1KiB", 2**10), ("1MiB", 2**20), ("1GiB", 2**30), ("1TiB", 2**40)],
)
def test_sizes_have_decimal_and_binary_units_which_the_reference_names(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert re.search(rf"\b{text.lstrip('1.5')}\b", (TOP / "docs/reference/files.md").read_text())


def test_units_are_parsed_and_formatted() -> None:
    assert (parse_size("1.5GB"), parse_size("512 MiB"), parse_duration("20ms")) == (1_500_000_000, 2**29, 0.02)
    assert (format_size(1536), format_size(12), format_size(3 * 2**40)) == ("1.5 KiB", "12 B", "3.0 TiB")
    assert (format_rate(943e6), format_rate(999_600)) == ("943 Mbit/s", "1 Mbit/s")
    assert (format_duration(0.0613), format_duration(83.2), format_duration(5e-6)) == ("61.3 ms", "83.2 s", "5 us")


def rounds(*dirty: int) -> list[Round]:
    return [Round(number=i + 1, bytes=2**30, seconds=1, dirty=left) for i, left in enumerate(dirty)]


def test_precopy_continues_while_rounds_gain() -> None:
    assert another_round([]) and not another_round([], 0)
    assert another_round(rounds(2**28))
    assert another_round(rounds(2**28, 2**26))
    assert not another_round(rounds(2**28, 2**28))
    assert not another_round(rounds(2**30))
    assert not another_round(rounds(2**28, 2**19))


def test_hybrid_switches_to_post_copy_at_a_high_dirty_rate() -> None:
    """The ratio of dirty rate to bandwidth is that of dirtied to sent bytes in a round."""
    sizes = 100 * 2**20
    for mode, written, more, switched in (
        ("pre-copy", 0.95, False, False),  # is frozen instead
        ("hybrid", 0.95, False, True),
        ("hybrid", 0.85, False, False),  # gains too little, but does not outrun the rounds
        ("hybrid", 0.5, True, False),
        ("post-copy", 0.5, True, True),
    ):
        parameters = MigrationParameters.model_validate({"mode": mode})
        rounds_so_far = [Round(number=1, bytes=sizes, seconds=1, dirty=int(written * sizes))]
        assert (
            another_round(rounds_so_far, parameters=parameters),
            switches_to_post_copy(rounds_so_far, parameters),
        ) == (
            more,
            switched,
        ), (mode, written)
    hybrid = MigrationParameters.model_validate({"mode": "hybrid", "downtime": "2s"})
    assert not switches_to_post_copy(
        [Round(number=1, bytes=sizes, seconds=1, dirty=sizes)], hybrid
    )  # fits into the permitted downtime
    assert not switches_to_post_copy([], MigrationParameters(mode="hybrid")) and not switches_to_post_copy(
        rounds(2**19), MigrationParameters(mode="hybrid")
    )


def test_precopy_policy_without_dirty_counts() -> None:
    """CRIU does not report dirty pages: the size of a round shows what its predecessor left."""

    def sent(*sizes: int) -> list[Round]:
        return [Round(number=i + 1, bytes=size, seconds=1) for i, size in enumerate(sizes)]

    assert not another_round(sent(1)) and another_round(sent(2**30))
    assert another_round(sent(2**30, 2**26))
    assert not another_round(sent(2**30, 2**30)) and not another_round(sent(2**30, 2**26, 2**19))


@given(st.lists(st.integers(0, 2**34), min_size=20, max_size=20))
def test_precopy_always_terminates(dirty: list[int]) -> None:
    done = 0
    while another_round(rounds(*dirty[:done])):
        done += 1
    assert done <= MAX_ROUNDS


def measured(size: int, overhead: float) -> Measured:
    """A node whose writes were not sampled."""
    return Measured(bytes=size, overhead=overhead)


def test_forecast_learns_rate_and_overhead() -> None:
    def made(size: int) -> Move:
        down = 0.05 + size / 200e6
        return Move(
            id="m", node="n", cluster="c", source="a", destination="b", phase=Phase.DONE, created=0, bytes=size,
            downtime=down, total=down + 0.2,
        )  # fmt: skip

    small = [made(2**20)] * 3
    assert forecast(measured(2**28, 0.05), False, small).downtime < 2, "small moves tell nothing of the rate"
    guess = forecast(measured(2**29, 0.0), False, [*small, made(2**27), made(2**28)])
    assert guess.downtime == pytest.approx(0.05 + 2**29 / 200e6, rel=0.01)
    assert guess.seconds == pytest.approx(guess.downtime + 0.2, rel=0.01)
    slow = forecast(measured(2**29, 0.0), False, [*small, made(2**27), made(2**28)], 8e6)
    assert slow.downtime > 2**29 / 1e6, "what was sent faster before is bounded by what it may send now"
    with_rounds = forecast(measured(2**29, 0.0), True, small)
    assert with_rounds.rounds and with_rounds.downtime < guess.downtime and with_rounds.bytes > guess.bytes
