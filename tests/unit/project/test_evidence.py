"""The helpers of tests: the evidence of a failed test, names of instances, and processes that are stopped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rest_service import Here

import evidence
import killed_runs
import stopping
import waiting
from machine import busiest, own_priority
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


# The report on the machine beside a failed test.


def test_a_process_that_takes_a_processor_is_named() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass  # spins"], stdout=-1
    ) as spinning:
        assert spinning.stdout
        spinning.stdout.readline()
        shown = busiest()
        spinning.kill()
    load, *lines = shown.splitlines()
    assert load.startswith("load ") and " MiB of memory free, " in load
    (line,) = [line for line in lines if f" R {spinning.pid} of " in line]
    assert "while True: pass  # spins" in line and int(line.split()[0]) > 1
    assert len(lines) <= 8 and all(len(line) <= 160 for line in lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives itself more priority")
def test_priority_is_given_back() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with own_priority():
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives itself more priority")
@pytest.mark.parametrize("nice", [-14, -13])
def test_no_test_begins_with_the_priority_of_the_last_one(nice: int) -> None:
    assert os.getpriority(os.PRIO_PROCESS, 0) > -13
    os.setpriority(os.PRIO_PROCESS, 0, nice)


# Names that `make test` may take for its own, and remove.


def test_names_of_this_run_alone_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killed_runs, "NAMES", tmp_path)
    monkeypatch.setattr(killed_runs.os, "geteuid", lambda: 0)
    for run, name in (("1 pid:[4] 10", "ours"), ("2 pid:[4] 10", "others")):
        monkeypatch.setenv(killed_runs.VARIABLE, run)
        killed_runs.note(name)
    monkeypatch.setenv(killed_runs.VARIABLE, "1 pid:[4] 10")
    assert killed_runs.names() == {"ours"}


# The processes that scripts/test-stopped stops, and that they continue.


RUN = "0 of this test"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """A helper of the run, one started by it without the run's mark, one of its instance, a node's first process,
    another run's helper."""
    cat, found = shutil.which("cat"), dict[str, subprocess.Popen[bytes]]()
    assert cat
    monkeypatch.setattr(killed_runs, "NAMES", tmp_path / "names")
    killed_runs.NAMES.mkdir()
    (killed_runs.NAMES / "inst").write_text(RUN)
    for name in ("wherry-link", "wherry-hold", "wherry-init", "libvirtd"):
        shutil.copy(cat, tmp_path / name)

    def begin(name: str, *words: str, run: str = RUN, **more: str) -> None:
        environment = {**os.environ, killed_runs.VARIABLE: run, **more}
        found[name] = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    try:
        begin("helper", str(tmp_path / "wherry-link"))
        begin(
            "parent", sys.executable, "-c", f"import subprocess; subprocess.run(['{tmp_path}/wherry-hold'], env={{}})"
        )
        begin("instance", str(tmp_path / "libvirtd"), run="", WHERRY_INSTANCE="inst")
        begin("node", str(tmp_path / "wherry-init"))
        begin("other", str(tmp_path / "wherry-link"), run="another")
        yield found
    finally:
        for process in found.values():
            assert process.stdin
            process.stdin.close()
            process.wait()


def test_helpers_of_the_run_alone_are_stopped(programs: dict[str, subprocess.Popen[bytes]]) -> None:
    waiting.until(lambda: len(stopping.candidates(RUN, stopping.instances(RUN))) == 3, "all helpers were started")
    found = stopping.candidates(RUN, stopping.instances(RUN))
    assert found["wherry-link"] == [programs["helper"].pid] and len(found["wherry-hold"]) == 1
    assert found["libvirtd"] == [programs["instance"].pid]


def test_what_stands_goes_on_at_the_end(
    programs: dict[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()
    monkeypatch.setattr(stopping, "PAUSES", (0.0, 0.0))
    thread = stopping.Stopping(RUN, 1, told.append)
    thread.start()
    waiting.until(lambda: told, "one stands")
    thread.end()
    assert sum(thread.stopped.values()) == len(told) and " stands for " in told[0]
    waiting.until(lambda: _state(programs["helper"].pid) == "S", "it goes on")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
