"""Reports of studies that the daemon keeps: whose they are, their bounds, and how they are brought and removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from accounts_world import Accounts
from rest_service import Service

from wherry.cli import study
from wherry.model.accounts import Role
from wherry.service import report_commands

BODY = {"title": "A <b>study</b>", "html": "<!doctype html><title>x</title><p>ü"}


@pytest.fixture
def world(service: Service) -> Accounts:
    world = Accounts(service)
    for name, role in (("ann", Role.USER), ("bob", Role.USER), ("vic", Role.VIEWER), ("eve", Role.ADMIN)):
        world.add(name, role)
    return world


def names(world: Accounts, who: str) -> list[str]:
    return [report["name"] for report in world.ask(who, "GET", "/v1/reports").json()]


def test_reports_are_their_owners_and_roots_are_everybodys(world: Accounts) -> None:
    for who, name in (("ann", "hers"), ("bob", "his"), ("root", "shared")):
        made = world.ask(who, "PUT", f"/v1/reports/{name}", BODY)
        assert made.status_code == 200 and made.json()["by"] == who, made.text
    assert names(world, "ann") == ["shared", "hers"] and names(world, "vic") == ["shared"]
    assert names(world, "eve") == ["shared", "his", "hers"]
    assert world.ask("ann", "GET", "/v1/reports/shared").json()["html"] == BODY["html"]
    for method in ("GET", "DELETE"):
        answer = world.ask("ann", method, "/v1/reports/his")
        assert answer.status_code == 404 and "known: hers, shared" in answer.json()["why"]
    assert world.ask("ann", "DELETE", "/v1/reports/shared").status_code == 403
    assert world.ask("ann", "PUT", "/v1/reports/his", BODY).json()["code"] == "NAME_TAKEN"
    assert world.ask("vic", "PUT", "/v1/reports/new", BODY).status_code == 403
    assert world.ask("ann", "PUT", "/v1/reports/hers", {**BODY, "title": "again"}).json()["title"] == "again"
    assert world.ask("ann", "DELETE", "/v1/reports/hers").status_code == 200
    assert names(world, "ann") == ["shared"]


@pytest.mark.parametrize("name", ["A", "..", ".hidden", "a.b", "x" * 21, "ü"])
def test_names_stay_in_the_directory(world: Accounts, name: str) -> None:
    before = set(world.service.place.top.rglob("*"))
    assert world.ask("ann", "PUT", f"/v1/reports/{name}", BODY).status_code in (404, 405, 422)
    assert world.ask("ann", "GET", f"/v1/reports/{name}").status_code in (404, 405, 422)
    assert {path for path in world.service.place.top.rglob("*") if "report" in path.name} <= before


def test_reports_are_bounded(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_commands, "_MAX_OF_OWNER", 1)
    monkeypatch.setattr(report_commands, "LONGEST_REPORT", 100)
    assert world.ask("ann", "PUT", "/v1/reports/one", {**BODY, "html": "ü" * 60}).json()["code"] == "USAGE"
    assert world.ask("ann", "PUT", "/v1/reports/one", BODY).status_code == 200
    assert world.ask("ann", "PUT", "/v1/reports/two", BODY).json()["code"] == "QUOTA_EXCEEDED"
    assert world.ask("ann", "PUT", "/v1/reports/one", BODY).status_code == 200, "its own again"
    assert world.ask("bob", "PUT", "/v1/reports/two", BODY).status_code == 200


def test_a_damaged_record_is_no_report(world: Accounts) -> None:
    world.ask("ann", "PUT", "/v1/reports/one", BODY)
    (world.service.place.state / "reports" / "two.json").write_text("{")
    assert names(world, "eve") == ["one"]


def test_files_are_the_daemons_alone(world: Accounts) -> None:
    world.ask("ann", "PUT", "/v1/reports/one", BODY)
    directory = world.service.place.state / "reports"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


def test_titles_of_reports() -> None:
    assert study._title_of("<html><TITLE>\n a &lt;b&gt;\n c</TITLE>") == "a <b> c"
    assert study._title_of("<p>") == "report"


def test_publish_and_withdraw(
    world: Accounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wherry.base.errors import Refused
    from wherry.client import Client

    monkeypatch.setattr("wherry.client.Client", lambda: Client(world.service.place, start=False))
    directory = tmp_path / "hpl-study"
    directory.mkdir()
    with pytest.raises(Refused, match="there is no report"):
        study.publish(directory)
    (directory / "report.html").write_text("<title>HPL</title>")
    study.publish(directory)
    study.publish(directory / "report.html", name="other")
    assert names(world, "root") == ["other", "hpl-study"] and "HPL" in capsys.readouterr().out
    study.withdraw("other")
    assert names(world, "root") == ["hpl-study"]
