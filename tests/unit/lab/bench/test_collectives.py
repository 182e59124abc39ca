"""How `collectives` evaluates the output of its program, and samples."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from wherry.base.errors import Code, Refused
from wherry.lab.bench import collectives_simulated, runner
from wherry.lab.bench.catalog import find
from wherry.lab.bench.collectives import geometric_means, read_cases
from wherry.lab.bench.samples import Samples
from wherry.lab.bench.smpi import TwoSites


def test_each_round_is_a_sample_and_a_wrong_result_does_not_count() -> None:
    output = (
        '{"what": "bcast", "bytes": 8, "seconds": [0.010, 0.012], "right": true}\n'
        '{"what": "reduce", "bytes": 8, "seconds": [0.020], "right": false}\n'
    )
    assert read_cases(output) == [
        {"what": "bcast", "bytes": 8, "ms": pytest.approx(10)},
        {"what": "bcast", "bytes": 8, "ms": pytest.approx(12)},
        {
            "what": "reduce",
            "bytes": 8,
            "ms": pytest.approx(20),
            "ok": False,
            "problem": "the result of reduce is wrong",
        },
    ]


def test_the_mean_is_of_the_cases_with_data_that_both_ways_have(tmp_path: Path) -> None:
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    times = {("barrier", 0): (90, 10), ("bcast", 8): (20, 10), ("bcast", 1024): (80, 10), ("alltoall", 8): (50, None)}
    for (what, size), pair in times.items():
        for way, ms in zip(("own", "sites"), pair, strict=True):
            if ms is not None:
                samples.add(turn=0, mpi="mpich", way=way, what=what, bytes=size, ms=float(ms))
    assert geometric_means(samples, "turn", mpi="mpich") == [pytest.approx(4.0)]
    assert geometric_means(samples, "turn", mpi="openmpi") == []
    table = runner.report(find("collectives"), samples).tables[0]
    verdicts = {row[0]: row[-1] for row in table.rows}
    assert verdicts["MPICH: bcast 8 B"] == verdicts["MPICH: geometric mean of own : by sites"] == "met"
    assert verdicts["MPICH: bcast 8 B, by itself"] == "met"


def test_settings_that_measure_nothing_are_refused() -> None:
    for setting in ("sizes=1", "sizes=6", "rounds=0", "nodes=0"):
        with pytest.raises(Refused):
            find("collectives", settings=[setting])


# The input of the simulator by `collectives-simulated`, and how that evaluates samples.


def test_the_platform_has_half_of_the_hosts_at_each_site_and_the_wan_between_them() -> None:
    where = TwoSites(7, 1, latency=0.01, bandwidth=1e9)
    text = where.platform()
    world = ElementTree.fromstring(text[text.index("<platform") :])[0]  # noqa: S314 - our own
    clusters = {one.get("id"): one for one in world.iter("cluster")}
    assert {site: one.get("radical") for site, one in clusters.items()} == {"a": "0-3", "b": "0-2"}
    assert {(one.get("lat"), one.get("bw")) for one in clusters.values()} == {("1e-05s", "1e+10bps")}
    (wan,) = world.findall("link")
    assert (wan.get("latency"), wan.get("bandwidth")) == ("0.01s", "1e+09bps")
    ways = {(way.get("src"), way.get("dst"), way[0].get("direction")) for way in world.iter("zoneRoute")}
    assert ways == {("a", "b", "UP"), ("b", "a", "DOWN")}


def test_ranks_are_placed_by_the_seed_and_the_map_says_where() -> None:
    places = [TwoSites(32, seed, 0.01, 1e9) for seed in (1, 1, 2)]
    hosts = [place.hosts() for place in places]
    assert hosts[0] == hosts[1] != hosts[2]
    assert sorted(hosts[0]) == sorted(hosts[2]) and len(set(hosts[0])) == 32
    assert places[0].site_map() == ",".join(f"{'ab'.index(host[0])}x1" for host in hosts[0])


def test_the_mean_of_each_placement_is_beside_its_goal(tmp_path: Path) -> None:
    samples = Samples(tmp_path / "s.jsonl", {"environment": {}})
    for seed, factor in ((1, 8.0), (2, 7.0)):
        for what, size in (("barrier", 0), ("bcast", 8), ("reduce", 8)):
            case = {"ranks": 96, "operations": "all", "seed": seed, "mpi": "ompi", "what": what, "bytes": size}
            samples.add(**case, way="own", ms=10.0 * (factor if size else 99))
            samples.add(**case, way="sites", ms=10.0)
    where = {"ranks": 96, "operations": "all"}
    assert geometric_means(samples, "seed", **where, mpi="ompi") == [pytest.approx(8), pytest.approx(7)]
    assert geometric_means(samples, "seed", **where, mpi="mpich") == []
    report = runner.report(find("collectives-simulated"), samples)
    verdicts = {row[0]: row[-1] for row in report.tables[0].rows}
    assert verdicts["Open MPI, 96 ranks: geometric mean of own : by sites"] == "met"
    assert "imulated" in report.tables[0].title and any("imulated" in remark for remark in report.remarks)


def test_settings_that_simulate_nothing_are_refused() -> None:
    for setting in ("sizes=0", "rounds=0", "ranks=2", "ranks=few", "seeds=", "large=2", "eager=1MiB", "latency=10"):
        with pytest.raises(Refused):
            find("collectives-simulated", settings=[setting])


@pytest.mark.parametrize("text", ["16,many", "16;96", ""])
def test_a_list_of_numbers_that_is_none_is_refused_with_an_example(text: str) -> None:
    for name in ("ranks", "seeds"):
        with pytest.raises(Refused, match=f"'{text}' is no list of numbers such as 16,96"):
            find("collectives-simulated", settings=[f"{name}={text}"])


class Simulator:
    """Records its calls; by sites an allreduce takes 10 ms, and `own` seconds else."""

    def __init__(self, own: float) -> None:
        self.runs: list[tuple[int, str, list[str], bool, int]] = []
        self._own = own

    def __call__(
        self, where: TwoSites, selector: str, words: list[str], directory: Path, *, by_sites: bool, eager: int
    ) -> str:
        self.runs.append((where.ranks, selector, words, by_sites, eager))
        case = {"what": "allreduce", "bytes": 8, "seconds": [0.01 if by_sites else self._own], "right": True}
        return json.dumps(case) + "\n"


@pytest.mark.parametrize(("own", "verdict"), [(0.08, "missed"), (0.16, "met")])
def test_only_an_allreduce_is_simulated_for_the_large_number_of_ranks(
    own: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives_simulated, "simulate", simulator := Simulator(own))
    settings = ["ranks=16", "seeds=1", "large=1024", "rounds=2", "eager=64KiB"]
    benchmark, samples = find("collectives-simulated", settings=settings), Samples(tmp_path / "s", {"environment": {}})
    for levels in benchmark.levels():
        for row in benchmark.measure(None, levels, tmp_path):  # type: ignore[arg-type]
            assert row["simulated"] is True
            samples.add(**levels, **row)
    expected = [
        (ranks, mpi, [*words, *only], by_sites, 65536)
        for ranks, only, own_words, site_words in (
            (16, [], ["5", "1", "1"], ["5", "2", "7"]),
            (1024, ["allreduce"], ["1", "1", "1"], ["1", "2", "1"]),
        )
        for mpi in ("ompi", "mpich")
        for words, by_sites in ((own_words, False), (site_words, True))
    ]
    assert simulator.runs == expected
    rows = {row[0]: row[-2:] for row in runner.report(benchmark, samples).tables[0].rows}
    for mpi in ("Open MPI", "MPICH"):
        assert rows[f"{mpi}, 1024 ranks: allreduce 8 B, own : by sites"] == ["at least 15", verdict]


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives_simulated, "obstacle", lambda: "SimGrid is not installed")
    with pytest.raises(Refused) as refused:
        find("collectives-simulated").prepare(None)  # type: ignore[arg-type]
    assert refused.value.code == Code.UNSUPPORTED and "SimGrid is not installed" in str(refused.value)
    assert refused.value.next == "make setup-simgrid"
