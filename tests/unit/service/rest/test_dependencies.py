"""Extensions of JSON by Python, and numbers and texts without measure: refused at the door, as a row with one of them
could be stored and never be read or sent again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from accounts_world import Accounts
from rest_service import CLUSTER, Service, ended, running
from schemathesis.specs.openapi.checks import positive_data_acceptance

from properties import examples
from wherry.base.errors import Code, Refused
from wherry.base.units import parse_duration, parse_rate, parse_size
from wherry.client import Client
from wherry.job.validation import plan
from wherry.model.accounts import Allowed, Role
from wherry.model.job_request import JobRequest
from wherry.model.owner import Owner
from wherry.model.records import Cluster
from wherry.service.balance_sampling import BalanceSampling

JOB = '{"cluster": "hello", "argv": ["sleep"], "ranks": 1, %s}'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("text")) as found:
        yield found


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(service.place.socket))
    with httpx.Client(transport=transport, base_url="http://wherryd", timeout=60) as client:
        if not client.get("/v1/clusters").json():
            ended(client, client.post("/v1/clusters", json={"spec": CLUSTER}))
        yield client


def sent(http: httpx.Client, method: str, path: str, body: bytes) -> dict[str, Any]:
    answer = http.request(method, path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    "more",
    [
        b'"argv": ["a", "\\ud800"]',
        b'"argv": ["a", "\xed\xa0\x80"]',
        b'"env": {"A": "\\udcff"}',
        b'"env": {"\\udcff": "a"}',
        b'"mpi": "\\udcff"',
        b'"expected": Infinity',
        b'"expected": 1e999',
        b'"expected": NaN',
    ],
)
def test_what_no_other_reader_takes_for_json(http: httpx.Client, more: bytes) -> None:
    found = sent(http, "POST", "/v1/jobs", JOB.encode() % more)
    assert found["code"] == "USAGE" and ("Unicode" in found["why"] or "finite" in found["why"]), found
    assert http.get("/v1/jobs").json() == []


def test_in_files_too(http: httpx.Client) -> None:
    for spec in (b'{"name": "x", "nodes": 1, "needs": ["/\\ud800"]}', b'{"name": "x", "nodes": 1, "\\ud800": 1}'):
        assert "Unicode" in sent(http, "POST", "/v1/clusters", b'{"spec": %s}' % spec)["why"]


def test_what_is_text_is_kept(http: httpx.Client) -> None:
    body = JOB.encode() % '"argv": ["sleep", "\\ud83d\\ude00", "ü"]'.encode()
    made = http.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
    assert ended(http, made)["state"] == "done"
    assert [job["argv"] for job in http.get("/v1/jobs").json()] == [["sleep", "😀", "ü"]]


def test_a_size_without_measure(http: httpx.Client) -> None:
    spec = b'{"name": "x", "nodes": 1, "memory": "%sGiB"}' % (b"9" * 400)
    found = sent(http, "POST", "/v1/clusters", b'{"spec": %s}' % spec)
    assert "larger than any size" in found["why"]
    for parse, unit in ((parse_size, "GiB"), (parse_duration, "s"), (parse_rate, "bit/s")):
        with pytest.raises(ValueError, match="larger than any"):
            parse("9" * 400 + unit)


def test_a_name_that_no_file_can_have(http: httpx.Client) -> None:
    for method in ("GET", "DELETE"):
        assert http.request(method, "/v1/images/a%00b").json()["code"] == "NOT_FOUND"


def test_the_client_says_which_word_cannot_be_sent(service: Service) -> None:
    with Client(service.place, start=False) as client, pytest.raises(Refused) as refused:
        client.run("hello", ["prog"], 1, mpi="mpi\udcff")
    assert refused.value.code is Code.USAGE and "mpi\\udcff" in refused.value.why


def test_a_variable_with_a_nul_byte_is_refused(tmp_path: Path) -> None:
    owner = Owner(uid=0, gid=0, home="/", cwd=str(tmp_path))
    spec = {"name": "hello", "nodes": 1}
    cluster = Cluster.model_validate(
        {"name": "hello", "spec": spec, "state": "running", "network": 1, "subnet": "10.0.0.0/24", "head_host": "a",
         "owner_uid": 0, "owner_gid": 0, "created": 0}
    )  # fmt: skip
    for env in ({"PATH": "/a\0b:/bin"}, {"LD_LIBRARY_PATH": "\0"}, {"A\0": ""}):
        order = JobRequest(cluster="hello", argv=("true",), ranks=1, owner=owner, env=env)
        with pytest.raises(Refused, match="NUL"):
            plan(order, cluster)


def test_what_is_not_sent_as_json_is_refused(http: httpx.Client) -> None:
    """A body of another type comes as bytes."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp"):
        answer = http.post("/v1/balance", content=b"{}", headers={"Content-Type": kind})
        assert answer.status_code == 422 and answer.json()["code"] == "USAGE", (kind, answer.text)


# The REST interface keeps to its own description: schemathesis asks what that allows, and much that it does not.


LEFT_OUT = {
    ("GET", "/v1/events/stream"): "it does not end",
    ("GET", "/v1/doctor"): "it looks at this machine",
    ("DELETE", "/v1/session"): "the token ends with it",
    ("DELETE", "/v1/fabric"): "nothing would be there for the others",
    ("PUT", "/v1/fabric"): "nor then",
}
STRICTER = positive_data_acceptance
"""Not checked: sizes, durations, names and related fields have closer checks than a JSON schema can have."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    """An admin over the network, and a cluster. Routes for the socket alone are refused."""
    with running(tmp_path_factory.mktemp("rest")) as service:
        accounts = Accounts(service)
        accounts.add("boss", Role.ADMIN)
        accounts.allow(Allowed.JOBS)
        accounts.done("boss", "POST", "/v1/clusters", {"spec": CLUSTER})
        yield accounts


def test_every_answer_is_as_described(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = BalanceSampling.measure
    monkeypatch.setattr(BalanceSampling, "measure", lambda view, _, *more: measure(view, 0.01, *more))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        state = {"network": world.address} if scope["type"] == "http" else {}
        await world.app({**scope, "state": state}, receive, send)

    headers = {"Authorization": f"Bearer {world.tokens['boss']}"}
    schema = schemathesis.openapi.from_asgi("/v1/openapi.json", app, headers=headers)
    found, asked = list[str](), set[tuple[str, str]]()
    for result in schema.get_all_operations():
        operation = result.ok()
        name = (operation.method.upper(), operation.path)
        asked.add(name)
        if name in LEFT_OUT:
            continue

        @hypothesis.settings(
            max_examples=examples(8),
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy())
        def ask(case: schemathesis.Case) -> None:
            _hurry(case)
            case.call_and_validate(headers=headers, excluded_checks=[STRICTER], timeout=60)

        try:
            ask()
        except schemathesis.errors.FailureGroup as error:
            found.append(f"{' '.join(name)}: {error}")
    assert not found, "\n\n".join(found)
    assert asked > LEFT_OUT.keys() and len(asked) > 80


def _hurry(case: schemathesis.Case) -> None:
    """Waits and measurements take no time."""
    for part in (case.query, case.body):
        if isinstance(part, dict):
            for name in ("wait", "gather"):
                part.pop(name, None)
            if isinstance(part.get("seconds"), int | float) and 0 < part["seconds"]:
                part["seconds"] = min(part["seconds"], 0.01)
