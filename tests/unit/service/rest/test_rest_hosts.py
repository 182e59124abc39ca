"""Machines that are made fit to be hosts by SSH, over REST, with a machine in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rest_service import Service, running

from wherry.base.errors import Bug, Code, Refused, WherryError
from wherry.client import Client
from wherry.hostlink.bundle import Bundle
from wherry.hostlink.host_report import HostReport
from wherry.model.records import HostFacts
from wherry.model.ssh_uri import SshUri
from wherry.service import host_bundles

URI = "ssh://root@10.0.0.1"
FACTS = HostFacts(
    kernel="6", architecture="x86_64", cpu_model="x", cpu_features=frozenset(), memory=1, runtime="", criu="4.2"
)


class Machine:
    """A machine that lacks `packages`, and prints `text` instead of a report, if that is set."""

    def __init__(self) -> None:
        self.packages, self.problems, self.criu, self.text = ["runc"], list[str](), "", ""
        self.done = list[Any]()

    def ensure(self, uri: SshUri, bundle: Bundle) -> bool:
        self.done.append("copied" if "copied" not in self.done else "checked")
        return self.done[-1] == "copied"

    def run(self, uri: SshUri, bundle: Bundle, *module: str, seconds: float) -> str:
        assert module[0] == "wherry.agent.report"
        if "--ensure" in module:
            self.done.append("criu")
            self.criu = ""
        report = HostReport(facts=FACTS, packages=tuple(self.packages), problems=tuple(self.problems), criu=self.criu)
        return self.text or report.model_dump_json()

    def install(self, uri: SshUri, packages: tuple[str, ...]) -> None:
        self.done.append(packages)
        self.packages = []

    def remove(self, uri: SshUri) -> None:
        self.done.append("removed")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    made = Machine()
    for name in ("ensure", "run", "install", "remove"):
        monkeypatch.setattr(host_bundles.bundles, name, getattr(made, name))
    (tmp_path / "archive").touch()
    monkeypatch.setattr(host_bundles.wiring, "agent_bundle", lambda: Bundle("d" * 64, tmp_path / "archive"))
    return made


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.place, start=False) as made:
        yield made


def add(client: Client, **more: bool) -> dict[str, Any]:
    result = client.wait(client.add_machine(URI, **more).id).result
    assert result
    return result


def failure(client: Client, **more: bool) -> WherryError:
    with pytest.raises(WherryError) as failed:
        add(client, **more)
    return failed.value


def test_packages_are_installed_when_the_user_agrees(client: Client, machine: Machine) -> None:
    refused = failure(client)
    assert (refused.code, refused.why) == (Code.INCOMPATIBLE_HOST, "runc")
    assert refused.next == f"wherry host add {URI} --install" and machine.done == ["copied"]
    assert add(client, install=True)["installed"] == ["runc"]
    assert machine.done == ["copied", "checked", ("runc",)]
    again = add(client)
    assert not again["copied"] and again["facts"]["criu"] == "4.2" and again["bundle"] == "d" * 64
    assert [event.kind for event in client.events()].count("host.add") == 2


def test_criu_is_fetched_when_the_user_agrees(client: Client, machine: Machine) -> None:
    machine.packages, machine.criu = [], "the kernel lacks something"
    assert add(client)["criu"] == "the kernel lacks something" and "criu" not in machine.done
    assert add(client, install=True)["criu"] == "" and "criu" in machine.done


def test_machine_that_cannot_be_a_host(client: Client, machine: Machine) -> None:
    machine.packages, machine.problems = [], ["vxlan devices cannot be made", "it has no cgroup controller cpu"]
    refused = failure(client, install=True)
    assert refused.code == Code.INCOMPATIBLE_HOST
    assert refused.why == "vxlan devices cannot be made; it has no cgroup controller cpu"


@pytest.mark.parametrize("text", ["{}", "Welcome!", '{"facts": 1}'])
def test_report_that_is_none(client: Client, machine: Machine, text: str) -> None:
    machine.text = text
    assert failure(client).code == Bug("x").code


def test_words_that_are_no_packages_are_not_installed(client: Client, machine: Machine) -> None:
    machine.packages = ["runc", "-o=Dir::Etc=/x"]
    assert failure(client, install=True).code == Bug("x").code and machine.done == ["copied"]


@pytest.mark.parametrize("uri", ["10.0.0.1", "ssh://-oProxyCommand=x", "ssh://root@h1;reboot", ""])
def test_uri_that_is_none(client: Client, machine: Machine, uri: str) -> None:
    for begin in (client.add_machine, client.remove_machine):
        with pytest.raises(Refused, match="named by how SSH reaches it"):
            begin(uri)
    assert machine.done == []


def test_removal(client: Client, machine: Machine) -> None:
    assert client.wait(client.remove_machine(URI).id).result == {"uri": URI}
    assert machine.done == ["removed"]
