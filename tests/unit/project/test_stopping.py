"""The processes that scripts/test-stopped stops, and that they continue."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import killed_runs
import stopping
import waiting

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
