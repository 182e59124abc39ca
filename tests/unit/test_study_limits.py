"""Limits of time and Ctrl-C: nothing that a study waits for lasts for ever, and what was started is ended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rest_service import CLUSTER, FABRIC, Service

from wherry.base.errors import Code, WherryError
from wherry.client import Client
from wherry.lab.study import testbed as benches
from wherry.lab.study.testbed import Running, Testbed
from wherry.model.records import JobState


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
        yield client


def test_an_operation_that_lasts_too_long_is_cancelled(service: Service, client: Client) -> None:
    driver: Any = service.context.require_managers().drivers["container"]
    driver.on_call = lambda name: time.sleep(0.5)
    operation = client.up(CLUSTER | {"name": "late", "nodes": 6, "cpus": 0.2})
    with pytest.raises(WherryError, match="within 0.1 s") as caught:
        client.wait(operation.id, seconds=0.1)
    assert caught.value.code == Code.TIMED_OUT and operation.id in caught.value.next
    with pytest.raises(WherryError) as caught:
        client.wait(operation.id)
    assert caught.value.code == Code.CANCELLED


def test_a_program_that_hangs_is_ended_whatever_of_it_is_waited_for(client: Client, tmp_path: Path) -> None:
    for wait in (lambda job: job.said(b"never", 0.3), lambda job: job.wait(0.3)):
        job = Running(client, client.run("hello", ["sleep"], 2, env={}), tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):
            wait(job)
        assert client.job(job.job.id).state == JobState.CANCELLED
    assert (tmp_path / "stdout").read_bytes() == b"out\n", "what it said until then is kept"


def test_what_is_waited_for_is_found_before_the_limit(client: Client, tmp_path: Path) -> None:
    job = Running(client, client.run("hello", ["sleep"], 2, env={}), tmp_path)
    job.said(b"out", 60.0)
    assert client.job(job.job.id).state == JobState.RUNNING


class Struck(Client):
    """Ctrl-C strikes it once, while it waits for an operation."""

    _struck = False

    def _get(self, path: str, **query: Any) -> Any:
        if path.startswith("/v1/operations/") and not self._struck:
            self._struck = True
            raise KeyboardInterrupt
        return super()._get(path, **query)


def test_ctrl_c_ends_a_run_also_when_what_it_waited_for_ended_well(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making a fabric cannot be cancelled: it is done, and the study must end nevertheless."""
    monkeypatch.setattr(benches, "Client", lambda: Struck(service.place))
    testbed = Testbed(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        testbed.stand_on(FABRIC)
    testbed.close()


def test_every_cluster_is_taken_down_also_when_one_cannot_be(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benches, "Client", lambda: Client(service.place))
    testbed = Testbed(tmp_path)
    with Client(service.place) as client:
        for name in ("aa", "hello"):
            client.wait(client.up(CLUSTER | {"name": name, "nodes": 1}).id)
            testbed._up[name] = benches.ClusterShape(name, 1, ())
        down = Client.down

        def one_fails(self: Client, name: str) -> Any:
            if name == "aa":
                raise WherryError(Code.FAILED, "the host does not answer")
            return down(self, name)

        monkeypatch.setattr(Client, "down", one_fails)
        assert testbed.client
        with pytest.raises(WherryError, match="does not answer"):
            testbed.close()
        assert [cluster["name"] for cluster in client.clusters()] == ["aa"]


def test_the_fabric_is_noted_with_every_state_of_its_links(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benches, "Client", lambda: Client(service.place))
    testbed = Testbed(tmp_path)
    assert testbed.fabric() == []
    for latency in ("10ms", "50ms", "10ms"):
        testbed.stand_on({**FABRIC, "links": [{"between": ["a", "b"], "latency": latency}]})
    text = "; ".join(testbed.fabric())
    assert "a1 at a" in text and text.count("hosts") == 1
    assert [text.count(f"there latency {ms} ms") for ms in ("10.0", "50.0")] == [1, 1], text
    testbed.close()


def test_commands_are_kept_with_the_variables_that_they_were_given(tmp_path: Path) -> None:
    testbed = Testbed(tmp_path)
    testbed.plain(["/bin/true", "a b"], tmp_path, 10.0, {"MPIR_CVAR_NOLOCAL": "1"})
    testbed.plain(["/bin/true"], tmp_path, 10.0)
    assert (tmp_path / "command").read_text() == "MPIR_CVAR_NOLOCAL=1 /bin/true 'a b'\n/bin/true\n"
