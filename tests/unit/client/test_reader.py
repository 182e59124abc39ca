"""A command that only reads starts no daemon, nor does a command that names a missing thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rest_service import CLUSTER, Here, Service

import wherry.client.client
from wherry.base.paths import images_directory
from wherry.cli.main import _run
from wherry.client import Client, Reader, daemon_process
from wherry.model.records import Operation


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """An instance without a daemon; starting one fails."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a daemon is started")

    place = Here("test", tmp_path)
    monkeypatch.setattr(wherry.client.client, "instance", lambda: place)
    monkeypatch.setattr(daemon_process, "start", start)
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state"))
    return place


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("status", "No cluster is up. Next: wherry up FILE"),
        ("node list", "There are no nodes."),
        ("host list", "No fabric is up. Next: wherry up FILE"),
        ("job list", "No job ran yet."),
        ("op list", "There are none."),
        ("event list", ""),
        ("site link", "There are no links: the fabric has one site."),
        ("image list", "There is no image. Next: wherry image build"),
    ],
)
def test_nothing_is_up(place: Here, capsys: pytest.CaptureFixture[str], words: str, expected: str) -> None:
    assert _run(words.split()) == 0
    out, err = capsys.readouterr()
    assert out.strip() == expected and not err
    assert _run([*words.split(), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.pop("schema").startswith("wherry/") and not any(document.values())
    assert not any(place.top.iterdir())


@pytest.mark.parametrize(
    ("words", "noun"),
    [
        ("node show hello-0", "node 'hello-0'"),
        ("job show job-1", "job 'job-1'"),
        ("op show 5", "operation '5'"),
        ("host show a1", "'a1'"),
        ("fabric show", "fabric"),
        ("site list", "fabric"),
        ("status hello", "cluster 'hello'"),
        ("down hello", "cluster 'hello'"),
        ("run hello -n 1 -- /bin/true", "cluster 'hello'"),
        ("logs hello", "cluster 'hello'"),
        ("logs --node hello-0", "node 'hello-0'"),
        ("job cancel job-1", "job 'job-1'"),
        ("job profile job-1", "job 'job-1'"),
        ("balance hello", "cluster 'hello'"),
        ("move hello-0 --to a1", "node 'hello-0'"),
        ("op wait 5", "operation '5'"),
        ("op cancel 5", "operation '5'"),
        ("host drain a1", "host 'a1'"),
        ("host restore a1", "host 'a1'"),
        ("host lost a1", "host 'a1'"),
        ("site link set a b --latency 1ms", "site 'a'"),
        ("fabric down", "fabric"),
    ],
)
def test_what_is_named_is_not_there(place: Here, capsys: pytest.CaptureFixture[str], words: str, noun: str) -> None:
    assert _run(words.split()) == 3
    error = capsys.readouterr().err
    assert error.startswith("error NOT_FOUND") and noun in error and "next: wherry" in error
    assert not any(place.top.iterdir())


def test_what_a_stopped_daemon_left_is_not_called_nothing(place: Here, capsys: pytest.CaptureFixture[str]) -> None:
    place.state.mkdir()
    (place.state / "wherry.db").touch()
    assert _run(["status"]) == 7
    error = capsys.readouterr().err
    assert "no daemon runs" in error and "nodes and jobs run on" in error and "next: wherry daemon start" in error


def test_rows_are_what_the_models_are(service: Service) -> None:
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
        reader = Reader(service.place)
        for rows, records in (
            (reader.nodes(), client.nodes()),
            (reader.hosts(), client.hosts()),
            (reader.rows("/v1/operations"), [Operation(**row) for row in client.operations()]),
            (reader.events(), client.events()),
        ):
            assert rows and rows == [record.model_dump(mode="json") for record in records]
    assert [row.name for row in reader.nodes("hello")] == ["hello-0", "hello-1", "hello-2"]
    with pytest.raises(AttributeError):
        reader.nodes()[0].colour  # noqa: B018


def test_images_are_read_where_no_daemon_runs(place: Here, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"name": "one", "digest": "d" * 64, "built": 1.0, "kernel": "6.1", "packages": {"mpich": "4"}, "mpi": []}
    directory = images_directory() / "one"
    directory.mkdir(parents=True)
    (directory / "image.json").write_text(json.dumps({**record, "programs": [], "bytes": 1, "agent": 1}))
    assert _run(["image", "list"]) == 0 and "one" in capsys.readouterr().out
    assert _run(["image", "show", "one"]) == 0 and "mpich" in capsys.readouterr().out
    assert _run(["image", "show", "two"]) == 3 and "known: one" in capsys.readouterr().err
