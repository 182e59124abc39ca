"""Permitted and refused requests of a running program by the token of its job; over its routes, in memory."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside_programs import GROUP, HOSTS, Program, elsewhere, make_job
from rest_service import Service, client_of, ended

from properties import examples
from wherry.base.errors import Code, Refused
from wherry.job import inside
from wherry.model.records import Hints, JobState
from wherry.service import rate_limit
from wherry.service.inside_commands import InsideLimits
from wherry.service.rate_limit import RateLimit
from wherry.service.rest.inside import lines, make_inside_app

OWNER = 4242


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock by which requests are counted: it shows `now`."""
    made = SimpleNamespace(now=1000.0, monotonic=lambda: made.now)
    monkeypatch.setattr(rate_limit, "time", made)
    return made


@pytest.fixture
def program(service: Service) -> Program:
    """A rank on node hello-0 of root's job."""
    return Program(service, make_job(service))


def test_a_program_learns_where_it_is_and_which_hosts_there_are(program: Program) -> None:
    nodes = program.service.context.store.nodes("hello")
    here = program("GET", "").json()
    assert (here["job"], here["node"], here["host"], here["ranks"]) == (program.job.id, "hello-0", nodes[0].host, 5)
    assert here["site"] == nodes[0].host[0]
    names = [program("GET", "", params={"rank": rank}).json()["node"] for rank in range(5)]
    assert names == ["hello-0", "hello-0", "hello-1", "hello-1", "hello-2"]
    assert program("GET", "", params={"rank": 5}).json()["code"] == "NOT_FOUND"
    found = program("GET", "/hosts").json()
    assert found["count"] == 3 and [host["name"] for host in found["hosts"]] == list(HOSTS)
    assert sum(host["nodes"] for host in found["hosts"]) == 3 and all(host["usable"] for host in found["hosts"])
    taken = sum(host["cores"] - host["free_cores"] for host in found["hosts"])
    assert taken == pytest.approx(1.5)


def test_ranks_are_where_a_layout_put_them(service: Service) -> None:
    layout = ("hello-2", "hello-0", "hello-2", "hello-1", "hello-0")
    program = Program(service, make_job(service, rank_nodes=layout))
    assert tuple(program("GET", "", params={"rank": rank}).json()["node"] for rank in range(5)) == layout


def test_a_program_moves_itself_another_rank_and_a_named_node(program: Program) -> None:
    service = program.service
    for body, name in (({}, "hello-0"), ({"rank": 4}, "hello-2"), ({"node": "hello-1"}, "hello-1")):
        target = elsewhere(service, name)
        said = program.end_of(program("POST", "/moves", {**body, "host": target}))
        assert (said["state"], said["moved"]) == ("done", 1), said
        found = service.context.store.node(name)
        assert found and found.host == target
        again = program("POST", "/moves", {**body, "host": target})
        assert again.status_code == 200 and again.json()["state"] == "done", "it is there already"


def test_ranks_that_ask_for_the_same_move_share_it(program: Program) -> None:
    target = elsewhere(program.service)
    held, both = program.service.context.require_managers().moves.apply, threading.Event()

    def slowly(*arguments: Any, **named: Any) -> Any:
        both.wait()
        return held(*arguments, **named)

    program.service.context.require_managers().moves.apply = slowly  # type: ignore[method-assign]
    first, second = (program("POST", "/moves", {"host": target}) for _ in range(2))
    both.set()
    assert first.json()["operation"] == second.json()["operation"]
    assert program.end_of(second)["state"] == "done"


def test_a_move_is_planned_by_one_request_at_a_time(program: Program) -> None:
    """Another rank of the node is refused for now, and later finds the move made."""
    target, moves = elsewhere(program.service), program.service.context.require_managers().moves
    plan, answers = moves.plan, list[httpx.Response]()

    def overlapped(*arguments: Any, **more: Any) -> Any:
        moves.plan = plan  # type: ignore[method-assign]
        answers.append(program("POST", "/moves", {"host": target}))
        return plan(*arguments, **more)

    moves.plan = overlapped  # type: ignore[method-assign]
    assert program.end_of(program("POST", "/moves", {"host": target}))["state"] == "done"
    assert answers[0].status_code == 429
    again = program("POST", "/moves", {"host": target})
    assert (again.status_code, again.json()["state"]) == (200, "done")


def test_a_request_whose_answer_was_cut_off_is_done_once(program: Program) -> None:
    key = {"Idempotency-Key": "0123456789abcdef" * 2}
    target, back = elsewhere(program.service), program.service.context.store.nodes("hello")[0].host
    first = program.end_of(program("POST", "/moves", {"host": target}, key))
    program.end_of(program("POST", "/moves", {"host": back}))
    again = program("POST", "/moves", {"host": target}, key).json()
    assert again["operation"] == first["operation"]
    found = program.service.context.store.node("hello-0")
    assert found and found.host == back, "the repeated request moved nothing"
    assert program("POST", "/moves", {"host": target}, {"Idempotency-Key": "x"}).json()["code"] == "USAGE"


def test_a_token_is_good_for_its_own_running_job_on_its_own_nodes(service: Service) -> None:
    mine, other = make_job(service), make_job(service, "other", uid=OWNER)
    over = make_job(service, state=JobState.ENDED)
    good = Program(service, mine)
    assert good("GET", "").status_code == 200
    texts = set()
    for wrong in (
        Program(service, mine, token=f"{mine.id}.{'0' * 64}"),
        Program(service, mine, token=f"{other.id}.{good.token.partition('.')[2]}"),
        Program(service, mine, token="job-99." + "0" * 64),
        Program(service, mine, token="x"),
        Program(service, mine, node=9),
        Program(service, other, cluster="hello"),
        Program(service, over),
    ):
        for method, path, body in (
            ("GET", "", None),
            ("GET", "/hosts", None),
            ("POST", "/moves", {"host": "a1"}),
            ("PUT", "/hints", {"expected": 5}),
        ):
            answer = wrong(method, path, body)
            assert (answer.status_code, answer.json()["code"]) == (403, "PERMISSION"), (wrong.token, path)
            texts.add(answer.json()["what"])
    assert len(texts) == 1, "a refusal does not reveal the existing jobs"
    assert service.context.store.jobs("hello")[0].hints is None and not service.context.store.moves()


def test_nodes_of_others_and_nodes_without_ranks_stay(service: Service) -> None:
    make_job(service, "other")
    program = Program(service, make_job(service, nodes=("hello-1",), ranks=1))
    for body in ({}, {"node": "hello-0"}, {"node": "other-0"}, {"node": "none"}):
        answer = program("POST", "/moves", {**body, "host": "a1"})
        assert (answer.status_code, answer.json()["code"]) == (403, "PERMISSION"), body
    assert program("POST", "/wishes", {"host": "a1"}).status_code == 403
    with client_of(service) as http:
        begun = http.post("/v1/moves", json={"node": "other-0", "host": elsewhere(service, "other-0")})
        assert program("GET", f"/operations/{begun.json()['id']}").status_code == 404
        assert ended(http, begun)["state"] == "done"
    assert program("POST", "/moves", {"host": "nowhere", "rank": 0}).json()["code"] == "NOT_FOUND"
    assert program("POST", "/moves", {"host": "a1", "rank": 0, "node": "hello-1"}).json()["code"] == "USAGE"


def test_only_who_may_use_the_daemon_moves_nodes_from_inside(service: Service) -> None:
    """As with `wherry move`: root, members of the group, and whose job root has started."""
    job = make_job(service, uid=OWNER, starter=OWNER)
    cluster = service.context.store.cluster("hello")
    assert cluster
    service.context.store.put_cluster(cluster.model_copy(update={"owner_uid": OWNER, "owner_gid": OWNER}))
    program, target = Program(service, job), elsewhere(service)
    refused = program("POST", "/moves", {"host": target})
    assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION")
    assert program("GET", "").status_code == 200, "it may look"
    service.context.store.put_job(job.model_copy(update={"starter": 0}))
    assert program.end_of(program("POST", "/moves", {"host": target}))["state"] == "done"
    assert service.context.operations.all()[-1].uid == OWNER, "the move is the user's"
    stranger = Program(service, make_job(service, uid=OWNER + 1, starter=0))
    answer = stranger("POST", "/moves", {"host": elsewhere(service)})
    assert answer.status_code == 403, "the cluster is another user's"


def test_a_job_knows_who_started_it(service: Service) -> None:
    """Root names its user; that is not who started it."""
    make_job(service)
    owner = {"uid": OWNER, "gid": OWNER, "home": "/", "cwd": "/"}
    with client_of(service) as http:
        body = {"cluster": "hello", "argv": ["sleep"], "ranks": 1, "owner": owner}
        begun = http.post("/v1/jobs", json=body)
        job = ended(http, begun)["result"]["job"]
    assert (job["uid"], job["starter"]) == (OWNER, 0)


def test_requests_are_bounded_in_number_and_size(program: Program, clock: SimpleNamespace) -> None:
    large = program("POST", "/moves", {"host": "a" * 5000})
    assert (large.status_code, large.json()["code"]) == (422, "USAGE")
    assert program("GET", "").headers["connection"] == "close"
    program.limits._asks = RateLimit(rate=0.1, burst=5.0)
    codes = [program("GET", "", headers={"Authorization": "none"}).status_code for _ in range(6)]
    assert codes == [403] * 5 + [429], "wrong tokens count"
    program.limits._asks = RateLimit(rate=0.1, burst=4.0)
    odd = [program("GET", "/nothing"), program("DELETE", "/moves"), program("POST", "/moves", {"x": 1})]
    odd.append(program("POST", "/moves", {"host": "a" * 5000}))
    assert [one.status_code for one in odd] == [404, 405, 422, 422], "so do unknown paths and malformed requests"
    assert program("GET", "/nothing").status_code == program("POST", "/moves", {"host": "a" * 5000}).status_code == 429
    limit = RateLimit(rate=1000.0, burst=2.0)
    assert [limit.take("a"), limit.take("a"), limit.take("b")] == [True, True, True]
    limits = InsideLimits()
    with pytest.raises(Refused, match="too many moves"):
        for _ in range(40):
            limits.act("job-1")


def test_a_rate_limit_refills_and_forgets(clock: SimpleNamespace) -> None:
    limit = RateLimit(rate=50.0, burst=1.0)
    assert limit.take("a") and not limit.take("a")
    clock.now += 0.03
    assert limit.take("a")
    for number in range(5000):
        limit.take(str(number))
    assert len(limit._buckets) == 5001
    clock.now += 0.03
    limit.take("last")
    assert list(limit._buckets) == ["last"]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(["/moves", "/wishes", "/balance", "/hints"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=30),
        lambda parts: (
            st.lists(parts, max_size=3)
            | st.dictionaries(st.sampled_from(["host", "rank", "node", "within", "phase", "x"]), parts, max_size=4)
        ),
        max_leaves=8,
    ),
)
def test_no_body_breaks_it(path: str, body: Any) -> None:
    program = _fuzzed()
    answer = program("PUT" if path == "/hints" else "POST", path, body)
    assert answer.status_code < 500, (body, answer.text)


_KEPT: list[Program] = []


def _fuzzed() -> Program:
    """One for all examples, whose requests are not counted."""
    program = _KEPT[0]
    program.app = make_inside_app(program.service.context, InsideLimits(), GROUP)
    return program


@pytest.fixture(autouse=True)
def kept(request: pytest.FixtureRequest) -> Any:
    if request.node.name == "test_no_body_breaks_it":
        service = request.getfixturevalue("service")
        _KEPT[:] = [Program(service, make_job(service, uid=OWNER))]
    yield
    _KEPT.clear()


# Hints.


def test_hints_are_kept_and_shown(program: Program) -> None:
    put = {"rank": 3, "phase": "checkpoint", "critical": True}
    assert program("PUT", "/hints", put).status_code == 200
    assert program("PUT", "/hints", {"rank": 1, "phase": "solve"}).status_code == 200
    with client_of(program.service) as http:
        shown = http.get(f"/v1/jobs/{program.job.id}").json()["hints"]
    assert [(one["rank"], one["name"], one["critical"]) for one in shown["phases"]] == [
        (3, "checkpoint", True),
        (1, "solve", False),
    ]
    assert "rank 3" in inside.amid_critical_phase(program.service.context.store.jobs("hello"))
    program("PUT", "/hints", {"rank": 3, "phase": ""})
    assert inside.amid_critical_phase(program.service.context.store.jobs("hello")) == ""
    program("PUT", "/hints", {"expected": 120.0})
    found = program.service.context.store.job(program.job.id)
    assert found and found.expected and found.expected >= 120.0 and found.hints and found.hints.told
    assert program("PUT", "/hints", {"phase": "a\nb"}).json()["code"] == "USAGE"


def test_a_hint_that_comes_too_early_is_to_be_repeated(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row may say that the job runs a moment before it takes hints."""

    def refuse(*_: object) -> None:
        raise Refused(Code.WRONG_STATE, "job is starting")

    monkeypatch.setattr(program.service.context.require_managers().jobs, "update", refuse, raising=False)
    assert program("PUT", "/hints", {"expected": 5}).status_code == 429


def test_what_an_iteration_takes_follows_from_two_hints() -> None:
    hints = inside.with_iterations(Hints(), 0, 100, 10.0)
    assert inside.remaining(hints, 10.0) is None
    hints = inside.with_iterations(hints, 0, 80, 20.0)
    assert inside.remaining(hints, 20.0) == pytest.approx(40.0)
    hints = inside.with_iterations(hints, 0, 20, 110.0)  # slower: timed anew from here
    hints = inside.with_iterations(hints, 0, 10, 130.0)
    assert inside.remaining(hints, 130.0) == pytest.approx(20.0)
    assert inside.remaining(inside.with_iterations(hints, 0, 15, 131.0), 131.0) is None, "another loop"


def test_iterations_of_ranks_are_not_mixed_and_the_slowest_ends_last() -> None:
    hints = Hints()
    for rank, left, ran in ((0, 100, 10.0), (1, 40, 10.5), (0, 90, 20.0), (1, 38, 20.5)):
        hints = inside.with_iterations(hints, rank, left, ran)
    assert [one.per_iteration for one in hints.iterations] == [pytest.approx(1.0), pytest.approx(5.0)]
    assert inside.remaining(hints, 20.5) == pytest.approx(190.0), "38 of five seconds, not 90 of one"
    assert inside.remaining(hints, 300.0) == 0.0, "a silent rank does not delay the others"
    assert Hints.model_validate({"iterations_left": 3, "timed_at": 1.0}) == Hints(), "a row of an earlier version"


def test_a_job_has_only_so_many_hints() -> None:
    hints = Hints()
    for rank in range(inside.MOST_RANKS):
        hints = inside.with_iterations(inside.with_phase(hints, rank, "p", False), rank, 1, 0.0)
    for more in (lambda: inside.with_phase(hints, 999, "p", False), lambda: inside.with_iterations(hints, 999, 1, 0.0)):
        with pytest.raises(Refused) as refused:
            more()
        assert refused.value.code is Code.NO_CAPACITY
    assert len(inside.with_phase(hints, 5, "q", True).phases) == inside.MOST_RANKS
    assert len(inside.with_iterations(hints, 5, 0, 1.0).iterations) == inside.MOST_RANKS


def test_who_asks_for_one_hint_too_many_is_told_so(program: Program) -> None:
    """Not that the job is being started, which the library would repeat for half a minute."""
    store, hints = program.service.context.store, Hints()
    for rank in range(inside.MOST_RANKS):
        hints = inside.with_phase(hints, 1000 + rank, "p", False)
    store.put_job(program.job.model_copy(update={"hints": hints}))
    refused = program("PUT", "/hints", {"rank": 0, "phase": "q"})
    assert (refused.status_code, refused.json()["code"]) == (403, "NO_CAPACITY"), refused.text


# The text that the library reads.


def test_answers_are_lines_for_who_wants_them(program: Program) -> None:
    answer = program("GET", "/hosts", headers={"Accept": "text/plain"})
    found = dict(line.split("=", 1) for line in answer.text.splitlines())
    assert (found["count"], found["hosts.0.name"], found["hosts.2.site"], found["hosts.0.usable"]) == (
        "3", "a1", "b", "1",
    )  # fmt: skip
    refused = program("POST", "/moves", {"host": "nowhere"}, {"Accept": "text/plain"})
    assert "code=NOT_FOUND\n" in refused.text and refused.status_code == 404


@given(st.dictionaries(st.sampled_from("abc"), st.text() | st.floats(allow_nan=False, allow_infinity=False)))
@settings(max_examples=examples(100))
def test_a_value_never_makes_two_lines(document: dict[str, Any]) -> None:
    found = list(lines(document))
    assert len(found) == len(document)
    assert all("\n" not in line and "\r" not in line and line.split("=")[0] in document for line in found)
