"""Balancing over REST, on nodes in memory: refusals, that looking changes nothing, and the daemon's setting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rest_service import CLUSTER, FABRIC, Service, running

from wherry.base.clock import now, steady
from wherry.base.errors import Code, Failed, WherryError
from wherry.client import Client
from wherry.model.balance import BalancePlan, Kind, ProposedMove, Verdict
from wherry.model.records import Job, JobState, Move, Phase, Prediction
from wherry.node.fake import FakeDriver
from wherry.node.protocol import NodeMover, Placement
from wherry.schedule.balance import Case
from wherry.service import balance_sampling, move_ends
from wherry.service.auto_balancer import AutoBalancer
from wherry.service.balance_commands import AUTO, carry_out, start
from wherry.service.balance_sampling import BalanceSampling, _MoveHistory
from wherry.service.claims import cluster_claim
from wherry.service.gain_measurement import GainMeasurement
from wherry.service.move_ends import MoveEndTimes


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
    plan, context = BalancePlan(verdicts=(verdict,)), service.context
    operation = start(context, "hello", ["hello"], lambda task: carry_out(context, task, plan), 0)
    assert len((client.wait(operation.id).result or {})["moves"]) == 1
    assert client.nodes()[0].host == verdict.moves[0].destination
    (event,) = [event for event in client.events() if event.kind == "balance.decision"]
    GainMeasurement(context).run_once()
    (move,) = client.moves()
    assert move.gain and (move.gain.before, move.gain.after, move.gain.measured) == (9.0, 3.0, None)
    assert move.gain.unmeasured == "messages are not counted here"
    assert event.text == verdict.text and event.data["numbers"]["after"] == 3.0 and event.data["moves"]  # type: ignore[index]


def test_the_daemon_acts_on_what_two_measurements_say_and_repeats_no_event(service: Service, client: Client) -> None:
    balancing = AutoBalancer(service.context)
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


def test_a_cluster_that_somebody_is_at_holds_up_no_other(service: Service, client: Client) -> None:
    """And that it was left is an event, with the reason, once."""
    go_on, context = threading.Event(), service.context
    busy = context.operations.start("up", "other", lambda _: go_on.wait(20) and {}, exclusive=[cluster_claim("other")])
    balancing, verdict = AutoBalancer(context), proposed(client)
    plan = BalancePlan(verdicts=(verdict.model_copy(update={"cluster": "other"}), verdict))
    for _ in range(2):
        balancing._decide(plan)
    (operation,) = [operation for operation in client.operations() if operation.kind == "balance"]
    assert operation.target == "hello" and len((client.wait(operation.id).result or {})["moves"]) == 1
    for _ in range(2):
        balancing._decide(BalancePlan(verdicts=plan.verdicts[:1]))
    said = [event for event in client.events() if event.kind == "balance.decision" and event.target == "other"]
    assert [f"operation {busy.id} (up other) is under way" in event.text for event in said] == [False, True]
    assert not said[-1].data["moves"]
    go_on.set()


def test_names_with_other_numbers_are_news_and_other_figures_are_not(service: Service) -> None:
    balancing = AutoBalancer(service.context)
    stays = Verdict(cluster="hello", kind=Kind.NETWORK, text="")

    def news(text: str) -> bool:
        return balancing._is_new(stays.model_copy(update={"text": text}))

    assert news("hello-3 is pinned and not at a1: 12.5 s") and not news("hello-3 is pinned and not at a1: 8 s")
    assert news("hello-5 is pinned and not at a1: 8 s") and news("hello-5 is pinned and not at a2: 8 s")


def test_what_was_noted_of_removed_clusters_is_forgotten(service: Service, client: Client) -> None:
    """A daemon runs for months, and clusters may have a new name each time."""
    balancing = AutoBalancer(service.context)
    for name in ("gone", "hello"):
        balancing._is_new(Verdict(cluster=name, kind=Kind.IDLE, text="no job runs", before=0.0, after=0.0))
    balancing._decide(BalancePlan(verdicts=()))
    assert list(balancing._noted) == ["hello"]


def run_job(service: Service, cluster: str, id: str) -> Job:
    """A row of a job that runs."""
    job = Job(
        id=id, cluster=cluster, argv=("sleep",), ranks=1, mpi="openmpi", uid=0, gid=0, cwd="/",
        state=JobState.RUNNING, created=now(), started=now(),
    )  # fmt: skip
    service.context.store.put_job(job)
    return job


class Scripted(BalanceSampling):
    """Proposes one move always, but to a host that refused it."""

    def __init__(self, service: Service, verdict: Verdict) -> None:
        domain = service.context.require_managers()
        super().__init__(service.context, domain)
        self._verdict = verdict

    def plan(self, before, after, clusters, remaining=None, refused=None):  # type: ignore[no-untyped-def]
        (move,) = self._verdict.moves
        stays = (move.node, move.destination) in (refused or {})
        verdict = self._verdict.model_copy(update={"moves": () if stays else (move,)})
        return BalancePlan(verdicts=(verdict,) if self._verdict.cluster in clusters else ())


def balancing(service: Service, verdict: Verdict) -> AutoBalancer:
    """The daemon's, switched on, with such a look."""
    service.context.store.put_setting(AUTO, "on")
    made = AutoBalancer(service.context)
    made._sampling = Scripted(service, verdict)
    return made


def balances(client: Client) -> int:
    """Operations of balancing that there were, when all have ended."""
    found = [operation for operation in client.operations() if operation.kind == "balance"]
    for operation in found:
        with pytest.raises(WherryError):
            client.wait(operation.id)
    return len(found)


def test_a_move_that_is_refused_is_tried_once(service: Service, client: Client) -> None:
    """It has no row, so neither the cool-down nor the hold would count from it."""
    run_job(service, "hello", "job-1")
    driver = service.context.require_managers().drivers["container"]
    assert isinstance(driver, FakeDriver)
    driver.immovable = "no CAP_SYS_RESOURCE"
    made = balancing(service, proposed(client))
    for _ in range(3):  # the first sample, the first measurement, the second that confirms it
        made.run_once()
    assert balances(client) == 1 and client.moves() == []
    for _ in range(4):
        made.run_once()
    assert balances(client) == 1
    events = [event for event in client.events() if event.kind == "balance.decision"]
    assert sum(bool(event.data["moves"]) for event in events) == 1


@pytest.mark.parametrize("between", ["idle", "another job at once", "switched off"])
def test_what_was_said_of_one_job_confirms_nothing_of_the_next(service: Service, client: Client, between: str) -> None:
    job = run_job(service, "hello", "job-1")
    driver = service.context.require_managers().drivers["container"]
    assert isinstance(driver, FakeDriver)
    driver.immovable = "it stays"
    made = balancing(service, proposed(client))
    made.run_once()
    made.run_once()
    assert made._before, "said once"
    if between == "switched off":
        client.auto_balance(False)
        made.run_once()
        client.auto_balance(True)
    else:
        service.context.store.put_job(job.model_copy(update={"state": JobState.ENDED}))
        if between == "idle":
            made.run_once()
        run_job(service, "hello", "job-2")
    if between == "another job at once":
        made.run_once()
    else:
        made.run_once()
        made.run_once()
    assert balances(client) == 0
    made.run_once()
    assert balances(client) == 1


def test_swaps_that_would_be_refused_again_and_again_are_left_out(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, asked = BalancePlan(verdicts=(proposed(client),)), list[int]()
    monkeypatch.setattr(balance_sampling, "with_swaps", lambda *_: (asked.append(1), found)[1])
    monkeypatch.setattr(
        BalanceSampling, "_impossible", lambda _, moves, *__: {(move.node, move.destination): "no" for move in moves}
    )
    assert client.balance("hello", 0.01).moves == () and len(asked) == 8


def test_a_job_that_stays_is_looked_at_now_and_then_until_something_changes(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job(service, "hello", "job-1")
    looks, ended = list[int](), list[int]()
    made = balancing(service, proposed(client).model_copy(update={"moves": ()}))
    monkeypatch.setattr(Scripted, "plan", lambda *_, **__: BalancePlan(verdicts=()))
    take = BalanceSampling.sample
    monkeypatch.setattr(BalanceSampling, "sample", lambda self: (looks.append(now), take(self))[1])
    monkeypatch.setattr(BalanceSampling, "close", lambda _: ended.append(now))
    now = 0
    while now < 20:
        made.run_once()
        now += 1
    # two samples are a measurement; then a second one, and pauses of 1, 2, 4 and 4 measurements
    assert looks == [0, 1, 2, 4, 5, 8, 9, 14, 15] and ended == [2, 5, 9, 15]
    run_job(service, "hello", "job-2")
    made.run_once()
    assert looks[-1] == 20, "another job"


def test_frames_are_counted_while_the_daemon_looks_and_no_longer(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ended = run_job(service, "hello", "job-1"), list[str]()
    monkeypatch.setattr(BalanceSampling, "close", lambda _: ended.append("look"))
    made = balancing(service, proposed(client))
    made.run_once()
    assert not ended
    client.auto_balance(False)
    made.run_once()
    assert len(ended) == 1, "switched off"
    client.auto_balance(True)
    made.run_once()
    assert len(ended) == 1
    service.context.store.put_job(job.model_copy(update={"state": JobState.ENDED}))
    made.run_once()
    assert len(ended) == 2, "no job runs"
    made.start()
    made.stop()
    assert len(ended) == 3, "the daemon ends"


def test_one_cluster_that_cannot_be_priced_leaves_the_plan_of_the_others(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.wait(client.up({"name": "other", "nodes": 1, "cpus": 0.1, "memory": "16MiB"}, "FILE").id)
    for cluster in ("hello", "other"):
        run_job(service, cluster, f"job-{cluster}")
    usable = FakeDriver.mover

    def mover(driver: FakeDriver, source: Placement, destination: Placement, way: object = None) -> NodeMover:
        if source.node.cluster == "hello":
            raise Failed(Code.FAILED, "it just ended")
        return usable(driver, source, destination)

    monkeypatch.setattr(FakeDriver, "mover", mover)
    first, second = client.balance(None, 0.01).verdicts
    assert (first.cluster, first.kind) == ("hello", Kind.UNKNOWN) and "it just ended" in first.text
    assert (second.cluster, second.kind) == ("other", Kind.IDLE)


def test_the_price_of_a_move_is_learnt_from_those_of_its_kind_within_a_site(client: Client) -> None:
    node = client.nodes()[0]
    nodes = [node, node.model_copy(update={"name": "hello-1", "kind": "vm"})]
    hosts = {host.name: host for host in client.hosts()}

    def moved(name: str, source: str, destination: str) -> Move:
        return Move(
            id=f"{name}-{source}-{destination}", node=name, cluster="hello", source=source, destination=destination,
            phase=Phase.DONE, created=0.0, ended=1.0,
        )  # fmt: skip

    within = moved("hello-0", "a1", "a2")
    others = [moved("hello-1", "a1", "a2"), moved("hello-0", "a1", "b1"), moved("hello-0", "gone", "lost")]
    assert _MoveHistory([within, *others], nodes, hosts, {}).within_site("container") == [within]
    assert _MoveHistory([within, *others], nodes, hosts, {}).within_site("vm") == others[:1]


def test_a_host_that_a_move_would_refuse_is_not_in_the_plan(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is made again without the proposed moves that would be refused."""
    tried: list[str] = []

    def first(cases: list[Case], *_: object) -> BalancePlan:
        verdict = proposed(client)
        move = verdict.moves[0]
        hosts = sorted(cases[0].allowed - {move.source} - {host for _, host in cases[0].refused})
        tried.extend(hosts[:1])
        moves = (move.model_copy(update={"destination": hosts[0]}),) if hosts else ()
        return BalancePlan(verdicts=(verdict.model_copy(update={"moves": moves}),))

    monkeypatch.setattr(balance_sampling, "plan", first)
    driver = service.context.require_managers().drivers["container"]
    assert isinstance(driver, FakeDriver)
    assert len(client.balance("hello", 0.01).moves) == 1 and len(tried) == 1
    monkeypatch.setattr(driver, "rate_obstacle", lambda rate: f"{rate:g} bit/s are too few")
    client.wait(client.set_link("a", "b", {"bandwidth": "1Mbit/s"}).id)
    sites = {host.name: host.site for host in client.hosts()}
    (move,) = client.balance("hello", 0.01).moves
    assert sites[move.source] == sites[move.destination], "over the link a move would be refused"
    tried.clear()
    driver.immovable = "no CAP_SYS_RESOURCE"
    assert not client.balance("hello", 0.01).moves
    assert set(tried) == {host.name for host in client.hosts()} - {client.nodes()[0].host}


def test_what_is_proposed_is_planned_again_with_a_sample_and_its_gain_is_kept(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Prediction]] = []

    def first(cases: list[Case], *_: object) -> BalancePlan:
        seen.append(dict(cases[0].costs))
        return BalancePlan(verdicts=(proposed(client),))

    monkeypatch.setattr(balance_sampling, "plan", first)
    driver = service.context.require_managers().drivers["container"]
    assert isinstance(driver, FakeDriver)
    driver.engine, driver.written = "pager", ((0.5, 4096),)
    client.wait(client.begin_balance("hello", 0.01).id)
    assert len(seen) == 2, "the sampled nodes are sampled once"
    move = service.context.store.moves()[-1]
    assert seen[1][move.node].written == ((0.5, 4096),)
    assert move.gain and move.gain.before > move.gain.after


def test_a_node_that_a_user_moved_after_the_plan_stays_where_it_is(service: Service, client: Client) -> None:
    verdict, context = proposed(client), service.context
    (move,) = verdict.moves
    (elsewhere,) = {host.name for host in client.hosts()} - {move.source, move.destination}
    client.wait(client.begin_move(move.node, elsewhere).id)
    plan = BalancePlan(verdicts=(verdict,))
    operation = start(context, "hello", ["hello"], lambda task: carry_out(context, task, plan), 0)
    with pytest.raises(WherryError, match="balanced in part") as partly:
        client.wait(operation.id)
    assert partly.value.code == Code.PARTLY_DONE and "moved after this was planned" in partly.value.why
    assert len(client.moves()) == 1 and client.nodes()[0].host == elsewhere


def test_setting_the_clock_neither_ends_nor_prolongs_a_cool_down(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it make moves of this cluster those of an earlier one of its name."""
    ends, hosts = MoveEndTimes(), {host.name: host for host in client.hosts()}
    (cluster,), nodes, wall = service.context.store.clusters(), client.nodes(), now()
    move = Move(
        id="mv-1", node=nodes[0].name, cluster="hello", source="a1", destination="a2", phase=Phase.DONE,
        created=wall - 102, ended=wall - 100,
    )  # fmt: skip
    for clock in (wall, wall + 3600, wall - 3600):
        monkeypatch.setattr(move_ends, "now", lambda clock=clock: clock)
        assert steady() - ends.by_id([move])["mv-1"] == pytest.approx(100, abs=10)
    future = move.model_copy(update={"id": "mv-2", "ended": wall})  # it ended before the clock was set back
    assert steady() - ends.by_id([move, future])["mv-2"] == pytest.approx(0, abs=10)
    assert ends.by_id([future]).keys() == {"mv-2"}
    assert _MoveHistory([move], nodes, hosts, ends.by_id([move])).of(cluster) == [move]
    after = cluster.model_copy(update={"after_move": "mv-1"})
    later = move.model_copy(update={"id": "mv-3"})
    assert _MoveHistory([move, later], nodes, hosts, ends.by_id([move, later])).of(after) == [later]
    service.context.store.put_move(move)
    client.wait(client.up({**CLUSTER, "name": "other", "nodes": 1}, "FILE").id)
    assert [found.after_move for found in service.context.store.clusters()] == ["", "mv-1"]
