"""Ranks of running jobs get new maps; a failed attempt is repeated later and later, and stops no other job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from wherry.base.errors import Code, LostContact
from wherry.node.rank_host import Informed
from wherry.node.rank_sites import RankSites
from wherry.service import rank_maps
from wherry.service.rank_maps import RankMaps


class Cluster:
    """Two nodes `NAME-0` and `NAME-1` of a job NAME with two ranks, at two sites."""

    def __init__(self, name: str) -> None:
        self.nodes = [SimpleNamespace(name=f"{name}-{i}", host=("a1", "b1")[i]) for i in range(2)]
        names = tuple(node.name for node in self.nodes)
        self.job = SimpleNamespace(id=name, cluster=name, ranks=2, computes=True, site_map="0x1,1x1", rank_nodes=names)


class Daemon:
    """Parts of it: `deaf` are nodes whose ranks do not keep their map, `broken` jobs of which reading fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.clusters = {name: Cluster(name) for name in names}
        self.deaf: set[str] = set()
        self.broken: set[str] = set()
        self.silent: set[str] = set()
        self.told: list[tuple[str, RankSites]] = []
        self.time = 0.0
        hosts = [SimpleNamespace(name=name, site=site) for name, site in (("a1", "a"), ("b1", "b"), ("a2", "a"))]
        managers = SimpleNamespace(
            fabric=SimpleNamespace(spec=SimpleNamespace(hosts=hosts)),
            placements=SimpleNamespace(port=lambda _node: SimpleNamespace(tap="")),
            ranks=self.host,
        )
        store = SimpleNamespace(
            jobs_under_way=lambda: [cluster.job for cluster in self.clusters.values()],
            nodes=lambda name: self.clusters[name].nodes,
        )
        context: Any = SimpleNamespace(
            managers=managers, store=store, operations=SimpleNamespace(if_unclaimed=self.if_unclaimed)
        )
        monkeypatch.setattr(rank_maps, "time", SimpleNamespace(monotonic=lambda: self.time))
        self.task = RankMaps(context)

    def if_unclaimed(self, _claims: object, observe: Callable[[], Any], act: Callable[[Any], None]) -> bool:
        act(observe())
        return True

    def host(self, name: str) -> Any:
        """A host, as the daemon asks it."""

        def newest_map(_node: str, job: str, _ranks: int) -> RankSites:
            if job in self.broken:
                raise ValueError(job)
            return RankSites(0, ())

        def tell_map(node: str, _job: str, map_: RankSites) -> Informed:
            if name in self.silent:
                raise LostContact(Code.UNREACHABLE, f"host {name} does not answer")
            self.told.append((node, map_))
            return Informed(int(node not in self.deaf), 0)

        return SimpleNamespace(newest_map=newest_map, tell_map=tell_map)

    def looks(self, seconds: float) -> Counter[str]:
        """How often each node gets a map in so many seconds."""
        before, end = len(self.told), self.time + seconds
        while self.time < end:
            self.task.run_once()
            self.time += self.task.every
        return Counter(name for name, _ in self.told[before:])


def test_all_nodes_are_told_once_of_each_new_map(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(monkeypatch, "one")
    assert not daemon.looks(10)
    for host, epoch, sites in (("a1", 1, (0, 0)), ("b1", 2, (0, 1))):
        daemon.clusters["one"].nodes[1].host = host
        assert daemon.looks(10) == {"one-0": 1, "one-1": 1}
        assert daemon.told[-1] == ("one-1", RankSites(epoch, sites))


def test_a_node_that_does_not_keep_it_is_told_later_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(monkeypatch, "one")
    daemon.deaf = {"one-1"}
    daemon.clusters["one"].nodes[1].host = "a1"
    first, later = daemon.looks(60), daemon.looks(3600)
    assert first["one-0"] == 1 and 5 <= first["one-1"] <= 8
    assert set(later) == {"one-1"} and 50 <= later["one-1"] <= 70
    daemon.clusters["one"].nodes[1].host = "b1"
    assert daemon.looks(1)["one-1"] == 2, "another map is sent at once"
    daemon.deaf = set()
    assert daemon.looks(10)["one-1"] == 1
    assert not daemon.looks(100)


def test_a_job_with_which_something_is_wrong_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(monkeypatch, "bad", "good")
    daemon.broken = {"bad"}
    daemon.clusters["good"].nodes[1].host = "a1"
    assert daemon.looks(600) == {"good-0": 1, "good-1": 1}
    complaints = [record.message for record in caplog.records]
    assert set(complaints) == {"the ranks of job bad do not learn of moves"} and len(complaints) < 20
    daemon.broken = set()
    daemon.clusters["bad"].nodes[1].host = "a1"
    assert daemon.looks(60) == {"bad-0": 1, "bad-1": 1}


def test_a_silent_host_is_told_when_it_answers_and_nothing_is_logged_meanwhile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(monkeypatch, "one")
    daemon.looks(1)
    daemon.silent, daemon.clusters["one"].nodes[1].host = {"a2"}, "a2"
    assert daemon.looks(600) == {"one-0": 1}
    assert not [record for record in caplog.records if record.levelname != "INFO"]
    daemon.silent = set()
    assert daemon.looks(120) == {"one-1": 1}
