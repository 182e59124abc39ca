"""Extensions of JSON by Python, and numbers and texts without measure: refused at the door, as a row with one of them
could be stored and never be read or sent again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest_service import CLUSTER, Service, ended, running

from wherry.base.errors import Code, Refused
from wherry.base.units import parse_duration, parse_rate, parse_size
from wherry.client import Client
from wherry.job.validation import plan
from wherry.model.job_request import JobRequest
from wherry.model.owner import Owner
from wherry.model.records import Cluster

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
