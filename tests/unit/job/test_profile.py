"""Profiles from counters: ranks that compute or wait, flows over the network, and the use by others."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import waiting
from wherry.base.clock import now
from wherry.base.errors import Code, LostContact
from wherry.base.paths import Instance
from wherry.cluster.placements import Placements
from wherry.fabric.host_counters import FrameCounts, HostCounters, NodeCounters, PairCount
from wherry.fabric.libvirt_hosts import LibvirtHostsFabric
from wherry.fabric.protocol import Fabric
from wherry.fabric.traffic_matrix import Count, _counted, _sets
from wherry.job.profile import Sample, Sampler, foreign, profile
from wherry.job.ranks import read
from wherry.model.records import Hints, HostFacts, Job, JobState, Node, NodeState
from wherry.model.spec.fabric import FabricSpec
from wherry.node import ranks
from wherry.node.rank_host import RankHost, RankProcess
from wherry.node.ranks import Times

NODES = [
    Node(
        name=f"c-{i}", cluster="c", index=i, host=host, address="", mac=f"02:00:00:00:00:0{i}", cpus=1, memory=1,
        state=NodeState.RUNNING,
    )
    for i, host in enumerate(["a1", "b1"])
]  # fmt: skip
FAR = {"a1": frozenset({NODES[1].mac}), "b1": frozenset({NODES[0].mac})}
WHERE = {node.name: node.host for node in NODES}


RAN = {"job-1": 20.0}


def a_job(**more: float) -> Job:
    return Job(
        id="job-1", cluster="c", argv=("x",), ranks=2, mpi="openmpi", uid=0, gid=0, cwd="/", state=JobState.RUNNING,
        created=now() - 30, started=now() - 20, **more,
    )  # fmt: skip


def times(rank: int, user: float, system: float, ran: float, ready: float = 0.0) -> Times:
    return Times("job-1", rank, f"c-{rank}", user, system, ran, ready)


def samples(one: Times, other: Times, throttled: float = 0.0) -> tuple[Sample, Sample]:
    """Ten seconds, at whose beginning both ranks had done nothing."""
    pairs = {(NODES[0].mac, NODES[1].mac): Count(10, 1000, 5)}
    later = {(NODES[0].mac, NODES[1].mac): Count(110, 11000, 25), ("02:77", NODES[0].mac): Count(9, 9, 9)}
    begin = {("", 1): times(0, 0, 0, 0), ("", 2): times(1, 0, 0, 0)}
    hosts = [{"a1": HostCounters(at=at, cpu=cpu, throttled=0.0)} for at, cpu in ((500.0, 1.0), (510.0, 9.0))]
    before = Sample(0.0, WHERE, begin, {}, {"a1": 1.0, "c-0": 1.0}, pairs, far=FAR, hosts=hosts[0])
    end = {("", 1): one, ("", 2): other}
    after = Sample(10.0, WHERE, end, {"c-0": throttled}, {"a1": 9.0, "c-0": 4.0}, later, far=FAR, hosts=hosts[1])
    return before, after


def test_who_computes_and_who_polls() -> None:
    before, after = samples(times(0, 9.9, 0.1, 10), times(1, 2.5, 7.5, 10))
    found = profile(before, after, "c", [a_job()], NODES, None, RAN)
    computing, polling = found.ranks
    assert computing.computing > 0.95 and polling.waiting == pytest.approx(1.0) and polling.cpu == pytest.approx(1.0)
    assert [load.ranks for load in found.nodes] == [1, 1] and found.nodes[1].waiting == polling.waiting
    assert found.remaining == found.ran == pytest.approx(20, abs=1) and "as long again" in found.basis


def test_a_rank_that_stands_for_lack_of_cpu_does_not_wait() -> None:
    """Held back by its limit for 6 s, ready but not running for 2 s: it computed whenever it could."""
    found = profile(*samples(times(0, 2, 0, 2, 2), times(1, 1, 0, 1, 0), 6.0), "c", [a_job()], NODES, 60.0, RAN)
    held, asleep = found.ranks
    assert held.waiting == pytest.approx(0.0) and found.nodes[0].throttled == pytest.approx(0.6)
    assert asleep.waiting == pytest.approx(0.9), "who sleeps waits"
    assert (found.remaining, found.basis) == (60.0, "as told")


def test_a_host_that_is_held_back_holds_its_nodes_back() -> None:
    before, after = samples(times(0, 5, 0, 5), times(1, 9, 0, 9))
    found = profile(before, replace(after, throttled={"a1": 5.0}), "c", [a_job()], NODES, None, RAN)
    assert found.nodes[0].throttled == pytest.approx(0.5) and found.ranks[0].waiting == pytest.approx(0.0)


def test_ranks_as_the_agent_of_a_virtual_machine_tells_them() -> None:
    def process(pid: int, environ: bytes, stat: bytes = b"", sched: bytes = b"2500000000 1000000000 9") -> bytes:
        stat = stat or b"%d (a) b) R 1 1 1 0 -1 4194304 60 0 0 0 130 20 0 0 20 0" % pid
        files = {b"environ": environ.split(b"\0"), b"stat": [stat + b"\n"], b"schedstat": [sched + b"\n"]}
        return b"".join(b"/proc/%d/%s:%s\0" % (pid, name, line) for name, lines in files.items() for line in lines)

    mark = b"HOME=/root\0WHERRY_JOB_ID=job-1\0"
    told = process(7, mark + b"OMPI_COMM_WORLD_RANK=3\0PATH=/bin") + process(8, mark + b"PMI_RANK=0")
    told += (
        process(9, b"A=b")
        + process(10, mark + b"PMI_RANK=1", stat=b"10 (cut")
        + process(11, mark + b"PMI_RANK=1", sched=b"x")
    )
    found = read("c-0", told + b"/proc/12/stat:")
    assert found["c-0", 7] == Times("job-1", 3, "c-0", 1.3, 0.2, 2.5, 1.0)
    assert [key for key in found] == [("c-0", 7), ("c-0", 8)] and found["c-0", 8].rank == 0
    assert read("c-0", b"\0\xff/proc/x:") == {}


@pytest.mark.parametrize("number", [b"9" * 5000, b"9" * 400, b"-1", b"\xd9\xa3", b"1e999", b"nan"])
def test_no_number_that_a_user_writes_stops_the_look_at_others(number: bytes) -> None:
    """Neither in a rank's environment, nor anywhere in the answer of a machine that its user has changed."""

    def told(pid: bytes = b"8", rank: bytes = b"1", ticks: bytes = b"1", ran: bytes = b"1") -> bytes:
        environ = b"WHERRY_JOB_ID=job-1\0/proc/%b/environ:PMI_RANK=%b\0" % (pid, rank)
        stat = b"%b (a) R 1 1 1 0 -1 4194304 60 0 0 0 %b 2 0 0 20 0\n" % (pid, ticks)
        return b"/proc/%b/environ:%b/proc/%b/stat:%b\0/proc/%b/schedstat:%b 1 9\n\0" % (
            pid,
            environ,
            pid,
            stat,
            pid,
            ran,
        )

    assert len(read("c-0", told())) == 1
    for bad in (told(pid=number), told(rank=number), told(ticks=number), told(ran=number)):
        assert [*read("c-0", bad + told(b"9"))] == [("c-0", 9)]


def test_a_process_of_this_machine_whose_user_writes_such_a_number() -> None:
    """And whose name is no text."""
    found = []
    for rank in ("9" * 5000, "3"):
        variables = {"WHERRY_JOB_ID": "job-1", "PMI_RANK": rank, "PATH": os.environ["PATH"]}
        found.append(
            subprocess.Popen(["sh", "-c", r"printf '\377' > /proc/self/comm; read x"], env=variables, stdin=-1)
        )
    try:
        sick, well = (process.pid for process in found)
        stats = [Path(f"/proc/{pid}/stat") for pid in (sick, well)]
        waiting.until(lambda: all(b"\xff" in stat.read_bytes() for stat in stats), "their names")
        assert [(pid, times.rank) for pid, times in ranks.here("c-0", [sick, well])] == [(well, 3)]
    finally:
        for process in found:
            process.kill()
            process.communicate()


def test_what_remains_of_what_was_expected() -> None:
    pair = samples(times(0, 1, 0, 1), times(1, 1, 0, 1))
    assert profile(*pair, "c", [a_job(expected=60.0)], NODES, None, RAN).remaining == pytest.approx(40, abs=1)
    told = a_job(expected=60.0).model_copy(update={"hints": Hints(told=True)})
    assert profile(*pair, "c", [told], NODES, None, RAN).basis == "as its program announced"
    late = profile(*pair, "c", [a_job(expected=10.0)], NODES, None, RAN)
    assert late.remaining == late.ran, "a job that takes longer than expected takes as long again"


def test_flows_are_rates_between_nodes_and_may_be_uncounted() -> None:
    before, after = samples(times(0, 1, 0, 1), times(1, 1, 0, 1))
    (flow,) = profile(before, after, "c", [a_job()], NODES, None, RAN).flows or ()
    assert (flow.source, flow.target, flow.messages, flow.bytes, flow.turns) == ("c-0", "c-1", 10.0, 1000.0, 2.0)
    before = replace(before, far={})
    (near,) = profile(before, after, "c", [a_job()], NODES, None, RAN).flows or ()
    assert near.turns == near.messages, "where turns are not counted, every message may be one"
    uncounted = Sample(10.0, WHERE, after.ranks, {}, {}, None, "real hosts")
    assert profile(before, uncounted, "c", [a_job()], NODES, None, RAN).uncounted == "real hosts"
    blind = replace(after, blind={"b1": "there is no program nft"})
    found = profile(before, blind, "c", [a_job()], NODES, None, RAN)
    assert found.flows is None and found.uncounted == "there is no program nft"


def test_ranks_that_came_or_moved_are_left_out_and_of_a_script_the_program_counts() -> None:
    before, after = samples(times(0, 9, 0, 9), times(1, 1, 0, 1))
    before.ranks["", 3] = times(0, 0, 0, 0)
    after.ranks["", 3] = times(0, 0.1, 0, 0.1)  # the script around rank 0
    after.ranks["", 4] = times(1, 5, 0, 5)  # began meanwhile
    before.ranks["", 2] = Times("job-1", 1, "c-9", 0, 0, 0, 0)  # came from another node
    found = profile(before, after, "c", [a_job()], NODES, None, RAN)
    assert [(load.rank, round(load.cpu, 1)) for load in found.ranks] == [(0, 0.9)]


def test_what_others_use_of_a_host() -> None:
    before, after = samples(times(0, 1, 0, 1), times(1, 1, 0, 1))
    assert foreign(before, after, ["a1", "b1"]) == {"a1": pytest.approx(0.5)}, "b1 is not counted"
    booted = replace(after, hosts={"a1": HostCounters(at=3.0, cpu=0.5, throttled=0.0)})
    assert foreign(before, booted, ["a1"]) == {}, "not 0: it is not known"


@pytest.mark.parametrize(("busy", "others"), [(3.0, 0.0), (12.9, 0.0), (18.0, 0.5), (33.0, 2.0)])
def test_what_others_use_of_a_host_that_is_a_machine(busy: float, others: float) -> None:
    """In ten seconds its nodes used 3; it has a CPU that is not the host's, which others use first."""
    before, after = samples(times(0, 1, 0, 1), times(1, 1, 0, 1))
    ends = ((before, 0.0, 0.0, 100.0), (after, 10.0, 3.0, 100.0 + busy))
    for sample, at, cpu, machine in ends:
        report = HostCounters(at=at, cpu=cpu, throttled=0.0, machine=machine, besides=1.0)
        sample.hosts["a1"] = report
    assert foreign(before, after, ["a1"]) == {"a1": pytest.approx(others)}


def test_where_nothing_can_be_counted_nothing_passes_for_counted() -> None:
    """On real hosts: frames of nodes do not pass this machine, and it has no cgroup of a host."""
    hosts = [
        {"name": name, "site": name[0], "cores": 1, "memory": "1GiB", "uri": f"qemu+ssh://{name}.example/system"}
        for name in ("a1", "b1")
    ]
    sites = [{"name": "a"}, {"name": "b"}]
    spec = FabricSpec.model_validate(
        {"kind": "fabric", "version": 1, "name": "real", "driver": "libvirt", "bridge": "br0"}
        | {"sites": sites, "hosts": hosts}
    )
    fabric = LibvirtHostsFabric(spec, Instance("test"), Nobody())
    sampler = Sampler(fabric, cast(Placements, None), lambda _: Nobody())  # type: ignore[arg-type, return-value]
    before, after = sampler.take([], []), sampler.take([], [])
    found = profile(before, after, "c", [a_job()], NODES, None, RAN)
    assert found.flows is None and "real hosts" in found.uncounted
    assert foreign(before, after, ["a1", "b1"]) == {}, "not 0: it is not known"


class Reporting:
    """A fabric of which `silent` hosts do not answer; each host has a clock of its own, and a node with one rank."""

    def __init__(self) -> None:
        self.uncounted, self.silent, self.now = "", set[str](), 0.0
        self.spec = SimpleNamespace(hosts=[SimpleNamespace(name=node.host, site="a") for node in NODES])
        self.spec.effective_links = list
        self.reader = "first"
        self.closed = list[str]()

    def counters(self, host: str, nodes: tuple[str, ...]) -> HostCounters:
        if host in self.silent:
            raise LostContact(Code.UNREACHABLE, f"host {host} does not answer")
        own = {name: NodeCounters(cpu=self.now / 2, throttled=0.0) for name in nodes}
        return HostCounters(at=1000.0 + self.now, cpu=self.now, throttled=0.0, nodes=own)

    def frame_counter(self, host: str) -> Any:
        def read(_far: frozenset[str]) -> FrameCounts:
            sent = [(one.mac, other.mac) for one, other in (NODES, NODES[::-1]) if one.host == host]
            count = int(self.now * 10)
            return FrameCounts(reader=self.reader, pairs=tuple(PairCount(*pair, count, count, 0) for pair in sent))

        return SimpleNamespace(read=read, close=lambda: self.closed.append(host))

    def ranks_at(self, host: str) -> RankHost:
        found = [
            RankProcess(7, Times("job-1", node.index, node.name, self.now / 2, 0.0, self.now / 2, 0.0))
            for node in NODES
            if node.host == host
        ]
        return cast(RankHost, SimpleNamespace(ranks=lambda _names: tuple(found), mpi_page=lambda *_: None))


@pytest.fixture
def reporting() -> tuple[Reporting, Sampler]:
    fabric = Reporting()
    placements = SimpleNamespace(port=lambda _node: SimpleNamespace(tap=False))
    return fabric, Sampler(cast(Fabric, fabric), cast(Placements, placements), fabric.ranks_at)


def test_hosts_report_by_their_own_clocks(reporting: tuple[Reporting, Sampler]) -> None:
    """Each has its own PIDs, which are equal here, and its own frames."""
    fabric, sampler = reporting
    before, fabric.now = sampler.take(NODES, [a_job()]), 4.0
    after = replace(sampler.take(NODES, [a_job()]), time=before.time + 4)
    found = profile(before, after, "c", [a_job()], NODES, None, RAN)
    assert [(rank.node, rank.cpu) for rank in found.ranks] == [("c-0", 0.5), ("c-1", 0.5)]
    assert [(node.cpu, node.ranks) for node in found.nodes] == [(0.5, 1)] * 2 and not found.uncounted
    assert found.flows and {(flow.source, flow.messages) for flow in found.flows} == {("c-0", 10.0), ("c-1", 10.0)}
    assert foreign(before, after, ["a1", "b1"]) == pytest.approx({"a1": 0.5, "b1": 0.5})
    sampler.close()
    assert sorted(fabric.closed) == ["a1", "b1"]


def test_a_host_that_is_silent_is_unknown(reporting: tuple[Reporting, Sampler]) -> None:
    fabric, sampler = reporting
    before, fabric.now, fabric.silent = sampler.take(NODES, [a_job()]), 4.0, {"b1"}
    after = sampler.take(NODES, [a_job()])
    assert after.unseen == {"c-1": "host b1 does not answer"} and foreign(before, after, ["a1", "b1"]).keys() == {"a1"}
    found = profile(before, after, "c", [a_job()], NODES, None, RAN)
    assert found.flows is None and found.uncounted == "host b1 does not answer"
    assert profile(before, after, "d", [], NODES[:1], None, {}).flows == (), "another cluster is counted"


def test_frames_of_a_counter_that_was_made_anew_are_unknown(reporting: tuple[Reporting, Sampler]) -> None:
    """As its agent had ended, and another reader had the rules removed meanwhile."""
    fabric, sampler = reporting
    before, fabric.now, fabric.reader = sampler.take(NODES, [a_job()]), 4.0, "second"
    found = profile(before, sampler.take(NODES, [a_job()]), "c", [a_job()], NODES, None, RAN)
    assert found.flows is None and found.uncounted == "host a1 began to count anew meanwhile"


class Nobody:
    """Real hosts that nobody asks."""

    def answers(self, host: str) -> bool:
        raise AssertionError(host)

    def facts(self, host: str) -> HostFacts:
        raise AssertionError(host)


def test_the_counters_as_nft_prints_them() -> None:
    val = {"concat": ["02:00:00:00:00:00", "02:00:00:00:00:01"]}
    counted = {"elem": {"val": val, "counter": {"packets": 3, "bytes": 200}}}
    sets = [
        {"set": {"name": "turns", "elem": [counted]}},
        {"set": {"name": "asked", "elem": [val]}},
        {"set": {"name": "pairs"}},
        {"chain": {"name": "count"}},
    ]
    found = list(_counted(_sets(json.dumps({"nftables": sets}))))
    assert found == [("turns", ("02:00:00:00:00:00", "02:00:00:00:00:01"), (3, 200))]
