"""The door for components: their parts, and that all else works without any."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import wherry
from wherry.base import components
from wherry.base.components import PACKAGES, Command, Component, installed, load, parts
from wherry.cli.status import Shown
from wherry.client import Client
from wherry.service.component import ServicePart

HIDDEN = f"""
import sys
class Absent:
    def find_spec(name, *_more):
        if name.split(".")[0] in {PACKAGES!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent)
"""


def without(code: str) -> Any:
    """The JSON that a program prints for which no component is installed."""
    done = subprocess.run([sys.executable, "-c", HIDDEN + code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def with_one(monkeypatch: pytest.MonkeyPatch, **brought: Any) -> None:
    """One component is installed, and brings this."""
    module = SimpleNamespace(COMPONENT=Component("one", **brought))
    monkeypatch.setattr(components, "import_module", lambda name: {"wherry_one.component": module}[name])
    monkeypatch.setattr(components, "PACKAGES", ("wherry_one",))
    monkeypatch.setattr(components, "installed", lambda: tuple(components._found()))


def test_nothing_here_names_a_component_but_the_door() -> None:
    top = Path(wherry.__file__).parent
    door = Path(components.__file__)
    assert all(package in door.read_text() for package in PACKAGES)
    for path in top.rglob("*.py"):
        assert path == door or not any(package in path.read_text() for package in PACKAGES), path


def test_commands_without_components() -> None:
    names = without(
        "import json\nfrom wherry.cli.main import make_app\n"
        "print(json.dumps([name for brief in (True, False) for name in make_app(brief)]))"
    )
    brought = {command.name for component in installed() for command in component.commands}
    assert {"up", "run", "move", "study"} <= set(names) and not brought & set(names)


def test_help_without_components() -> None:
    for words in (["--help"], ["study", "list"], ["status", "--help"]):
        hidden = f"{HIDDEN}from wherry.cli.main import main; main({words!r})"
        done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=240)
        assert done.returncode == 0 and len(done.stdout.splitlines()) > 5, done.stderr


def test_routes_without_components() -> None:
    """Each has its row of rights, as with components."""
    code = (
        "import json\nfrom types import SimpleNamespace\nfrom wherry.service.rest import app, authorization\n"
        "made = app.make_app(SimpleNamespace(operations=None, metrics=None))._app\n"
        "paths = made.openapi()['paths']\n"
        "rows = {f'{method} {path}' for method, path in authorization.RULES}\n"
        "routes = {f'{method.upper()} {path}' for path, methods in paths.items() for method in methods}\n"
        "print(json.dumps([sorted(routes - rows), sorted(rows)]))"
    )
    unknown, rows = without(code)
    brought = {f"{method} {path}" for component in installed() for method, path in component.rights}
    assert not unknown and "GET /v1/nodes" in rows and not brought & set(rows)


def test_doctor_studies_and_the_rest_without_components() -> None:
    code = (
        "import json, tempfile\nfrom pathlib import Path\nfrom wherry.base.components import installed\n"
        "from wherry.base.paths import instance\nfrom wherry.lab.study.catalog import STUDIES\n"
        "from wherry.service import doctor, purge, component\n"
        "doctor._PROBES = (doctor._root, doctor._components, doctor._kernel)\n"
        "print(json.dumps({'components': len(installed()), 'studies': [study.name for study in STUDIES],\n"
        " 'findings': [found.name for found in doctor.examine()], 'remains': list(purge.remains(instance()))}))"
    )
    found = without(code)
    assert found["components"] == 0 and found["findings"] == ["root", "kernel"]
    assert "packing" in found["studies"] and found["remains"][0] == "processes"
    assert not {study.name for _, studies in parts("studies") for study in studies} & set(found["studies"])


def test_what_a_component_brings_is_there() -> None:
    """Each place that is named can be imported: a wrong one would be found when it is used."""
    for component in installed():
        places = [component.status, component.requests, component.routes, component.service, component.studies]
        for place in (*filter(None, places), *component.tasks, *(command.place for command in component.commands)):
            assert load(place) is not None


@pytest.mark.parametrize(("kind", "protocol"), [("service", ServicePart), ("status", Shown)])
def test_a_part_has_the_functions_of_its_protocol(kind: str, protocol: type) -> None:
    functions = {name: one for name, one in vars(protocol).items() if inspect.isfunction(one) and name[0] != "_"}
    assert functions
    for _, part in parts(kind):
        for name, function in functions.items():
            _, *expected = inspect.signature(function).parameters
            assert len(inspect.signature(getattr(part, name)).parameters) == len(expected), (part, name)


def test_a_package_that_lacks_something_is_not_taken_for_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(_name: str) -> Any:
        raise ModuleNotFoundError("No module named 'else'", name="else")

    monkeypatch.setattr(components, "import_module", lacks)
    with pytest.raises(ModuleNotFoundError):
        list(components._found())


def test_requests_of_a_component_are_those_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    class Requests:
        def __init__(self, transport: Any) -> None:
            self.transport = transport

        def asked(self) -> Any:
            return self.transport

    with_one(monkeypatch, requests="here:Requests", commands=(Command("one", "here:app", "One."),))
    monkeypatch.setattr(components, "load", lambda _place: Requests)
    client = Client.at("https://localhost:1", "token")
    assert client.asked() is client._transport  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'Client' object has no attribute 'answered'"):
        client.answered()  # type: ignore[attr-defined]
