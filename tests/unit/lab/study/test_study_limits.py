"""Time limits and Ctrl-C of studies: every wait is bounded, and everything that was started is ended."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rest_service import CLUSTER, FABRIC, Service

from wherry.base.errors import Code, WherryError
from wherry.client import Client
from wherry.lab.study import testbed as testbed_module
from wherry.lab.study.testbed import RunningJob, Testbed
from wherry.model.records import JobState


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
        yield client


def test_operation_past_its_time_limit_is_cancelled(service: Service, client: Client) -> None:
    driver: Any = service.context.require_managers().drivers["container"]
    go = threading.Event()
    driver.on_call = lambda name: go.wait(60)
    operation = client.up(CLUSTER | {"name": "late", "nodes": 6, "cpus": 0.2})
    with pytest.raises(WherryError, match="within 0.1 s") as caught:
        client.wait(operation.id, seconds=0.1)
    assert caught.value.code == Code.TIMED_OUT and operation.id in caught.value.next
    go.set()
    with pytest.raises(WherryError) as caught:
        client.wait(operation.id)
    assert caught.value.code == Code.CANCELLED


def test_hung_job_is_cancelled_at_its_time_limit(client: Client, tmp_path: Path) -> None:
    for wait in (lambda job: job.await_output(b"never", 0.3), lambda job: job.wait(0.3)):
        job = RunningJob(client, client.run("hello", ["sleep"], 2, env={}), tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):
            wait(job)
        assert client.job(job.job.id).state == JobState.CANCELLED
    assert (tmp_path / "stdout").read_bytes() == b"out\n", "what it said until then is kept"


def test_await_output_returns_when_the_text_appears(client: Client, tmp_path: Path) -> None:
    job = RunningJob(client, client.run("hello", ["sleep"], 2, env={}), tmp_path)
    job.await_output(b"out", 60.0)
    assert client.job(job.job.id).state == JobState.RUNNING


class InterruptedClient(Client):
    """A client that receives Ctrl-C once during a wait for an operation."""

    _interrupted = False

    def get(self, path: str, **query: Any) -> Any:
        if path.startswith("/v1/operations/") and not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt
        return super().get(path, **query)


def test_ctrl_c_ends_a_run_whose_operation_succeeded(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making a fabric cannot be cancelled: the operation succeeds, and the study must end nevertheless."""
    monkeypatch.setattr(testbed_module, "Client", lambda: InterruptedClient(service.place))
    testbed = Testbed(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        testbed.use_fabric(FABRIC)
    testbed.close()


def test_remaining_clusters_are_removed_when_one_removal_fails(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testbed_module, "Client", lambda: Client(service.place))
    testbed = Testbed(tmp_path)
    with Client(service.place) as client:
        for name in ("aa", "hello"):
            client.wait(client.up(CLUSTER | {"name": name, "nodes": 1}).id)
            testbed._clusters[name] = testbed_module.ClusterShape(name, 1, ())
        down = Client.down

        def down_fails_for_aa(self: Client, name: str, end_jobs: bool) -> Any:
            if name == "aa":
                raise WherryError(Code.FAILED, "the host does not answer")
            return down(self, name, end_jobs)

        monkeypatch.setattr(Client, "down", down_fails_for_aa)
        assert testbed.client
        with pytest.raises(WherryError, match="does not answer"):
            testbed.close()
        assert [cluster["name"] for cluster in client.clusters()] == ["aa"]


def test_fabric_is_recorded_with_every_link_setting(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testbed_module, "Client", lambda: Client(service.place))
    testbed = Testbed(tmp_path)
    assert testbed.fabric() == []
    for latency in ("10ms", "50ms", "10ms"):
        testbed.use_fabric({**FABRIC, "links": [{"between": ["a", "b"], "latency": latency}]})
    text = "; ".join(testbed.fabric())
    assert "a1 at a" in text and text.count("hosts") == 1
    assert [text.count(f"there latency {ms} ms") for ms in ("10.0", "50.0")] == [1, 1], text
    testbed.close()


def test_commands_are_recorded_with_their_variables(tmp_path: Path) -> None:
    testbed = Testbed(tmp_path)
    testbed.run_command(["/bin/true", "a b"], tmp_path, 10.0, {"MPIR_CVAR_NOLOCAL": "1"})
    testbed.run_command(["/bin/true"], tmp_path, 10.0)
    assert (tmp_path / "command").read_text() == "MPIR_CVAR_NOLOCAL=1 /bin/true 'a b'\n/bin/true\n"
