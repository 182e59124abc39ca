"""The evidence of a failed test: the files that its instances wrote, and nothing of the directories that nodes show."""

from __future__ import annotations

from pathlib import Path

import pytest
from rest_service import Here

import evidence
from names import own_name


def test_evidence_does_not_walk_into_what_nodes_show_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home that holds the checkout is bound into nodes, so that below an instance lies the evidence itself."""
    instance = Here(own_name("evid"), tmp_path)
    place = instance.run / "nodes" / "x-0"
    (instance.state / "log").mkdir(parents=True)
    (instance.state / "log" / "daemon.log").write_text("the daemon's\n")
    (place / "images").mkdir(parents=True)
    (place / "images" / "dump.log").write_text("CRIU's\n")
    shown = [place / directory / "home" for directory in ("binds", "merged", "private")]
    for home in shown:
        home.mkdir(parents=True)
        (home / "users.log").write_text("a user's\n")
    monkeypatch.setattr(evidence, "instances", lambda: [instance])
    kept = shown[0] / "checkout" / "build" / "test" / "failed"
    report = pytest.TestReport("tests/a.py::test[x/y]", ("a.py", 1, "test"), {}, "failed", "why", "call")

    evidence.keep(kept, report)
    evidence.keep(kept, report)

    assert sorted(made.name for made in kept.iterdir()) == ["a.py_test[x_y]", "a.py_test[x_y].2"]
    for made in kept.iterdir():
        assert "why" in (made / "report.txt").read_text()
        texts = {file.name: file.read_text() for file in (made / instance.name).iterdir()}
        assert texts == {"log_daemon.log": "the daemon's\n", "nodes_x-0_images_dump.log": "CRIU's\n"}
