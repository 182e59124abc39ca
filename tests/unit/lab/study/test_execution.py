"""Failures of studies: bugs, full disks, truncated files, changed machines, Ctrl-C, missing permissions."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakestudy import Act, FakeStudy, constant_values, make, page_text, run

from wherry.base.errors import Code, Failed, Refused
from wherry.cli import main
from wherry.lab.study import catalog, execution, render, runner
from wherry.lab.study.levels import Combination, Value
from wherry.lab.study.results import Results
from wherry.lab.study.testbed import Testbed


@pytest.mark.parametrize(
    "error",
    [
        TypeError("'NoneType' object is not subscriptable"),
        StopIteration(),
        IndexError("list index out of range"),
        subprocess.CalledProcessError(1, ["ip"]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_unexpected_exception_fails_the_run_and_not_the_study(tmp_path: Path, error: Exception) -> None:
    errors = [error]

    def measure_run(combination: Combination) -> list[Value]:
        if errors:
            raise errors.pop()
        return constant_values(combination)

    results = make(tmp_path, measure_run)
    run(results)
    assert len(results.counted()) == 7
    (failed,) = results.failed()
    assert failed.problem.startswith(type(error).__name__)
    assert "in measure_run" in (results.directory_of(failed) / "traceback").read_text()


def test_the_files_of_a_failed_run_are_removed_before_its_row_is_written(tmp_path: Path) -> None:
    """On a full disk they occupy the space that the row needs."""
    results = make(tmp_path)

    def fills(combination: Combination) -> list[Value]:
        newest = max(tmp_path.glob("runs/*"))  # the newest: names begin with the run's number
        (newest / "big").write_bytes(bytes(2 << 20))
        raise OSError(errno.ENOSPC, "No space left on device")

    add = results.add_failed
    large_files: list[list[Path]] = []

    def watched(failed: Any) -> None:
        large_files.append(list(tmp_path.glob("runs/*/big")))
        add(failed)

    results.study.measure_run = fills  # type: ignore[attr-defined]
    results.add_failed = watched  # type: ignore[method-assign]
    with pytest.raises(Failed, match="in a row"):
        run(results)
    assert large_files == [[]] * 5


def test_reserve_is_refilled_when_there_is_space(tmp_path: Path) -> None:
    results = make(tmp_path)
    results.release_reserve()
    run(results)
    assert (tmp_path / ".reserve").stat().st_size == 4 << 20


def test_reserve_that_does_not_fit_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Refused, match="cannot be written"):
        make(tmp_path)
    assert not (tmp_path / ".reserve").exists(), "the next session would take it for its own"


def test_reading_results_writes_nothing(tmp_path: Path) -> None:
    """A report or comparison may be made while a run is written."""
    results = make(tmp_path)
    run(results)
    with results.samples_file.open("a") as file:
        file.write("9,4,0,1,small,a,sec")
    before = results.samples_file.read_bytes()
    assert len(Results(tmp_path, results.study, results.manifest).counted()) == 8
    assert results.samples_file.read_bytes() == before
    results.samples_file.unlink()
    assert Results(tmp_path, results.study, results.manifest).counted() == []
    assert not results.samples_file.exists()
    make(tmp_path)
    assert results.samples_file.read_text().startswith("run,turn,")


def test_running_study_cannot_be_started_again(tmp_path: Path) -> None:
    results = make(tmp_path, repetitions=2)
    with results.session(), pytest.raises(Refused, match="another run of this study"):
        make(tmp_path, repetitions=9)
    assert Results.read_manifest(tmp_path)["repetitions"] == 2


@pytest.mark.parametrize("fact", ["cpu", "kernel", "open mpi", "mpich", "lapack, blas", "wherry"])
def test_sessions_on_different_machines_are_refused(tmp_path: Path, fact: str) -> None:
    run(make(tmp_path, repetitions=1))
    manifest = json.loads((tmp_path / "study.json").read_text())
    manifest["sessions"][0]["before"][fact] = "another"
    (tmp_path / "study.json").write_text(json.dumps(manifest))
    with pytest.raises(Refused, match="another machine") as raised:
        make(tmp_path, repetitions=2)
    assert f"{fact}: another then, " in raised.value.why and "compare" in raised.value.next
    assert json.loads((tmp_path / "study.json").read_text()) == manifest
    manifest["sessions"][0]["before"] = {"load": "0 0 0"}  # written by a version that recorded fewer facts
    (tmp_path / "study.json").write_text(json.dumps(manifest))
    again = make(tmp_path, repetitions=2)
    run(again)
    assert len(again.counted()) == 4


def test_daemon_is_stopped_when_clusters_cannot_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        def close(self) -> None:
            raise Failed(Code.FAILED, "the cluster cannot be taken down")

    calls = cleaning(monkeypatch)
    with pytest.raises(Failed, match="taken down"):
        execution._take_down(Stuck(), execution._clean_up())  # type: ignore[arg-type]
    assert calls == ["stop", "sweep"]


@pytest.mark.parametrize(
    ("there", "runs", "expected"), [(False, False, ["stop", "sweep"]), (True, False, ["stop"]), (True, True, [])]
)
def test_an_instance_is_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch, there: bool, runs: bool, expected: list[str]
) -> None:
    """An instance that the study made is removed, and a daemon that it started is stopped."""
    cleaning(monkeypatch, "named", there, runs)
    clean_up = execution._clean_up()
    calls = cleaning(monkeypatch, "named", there=True, runs=True)
    clean_up()
    assert calls == expected


def cleaning(monkeypatch: pytest.MonkeyPatch, name: str = "study", there: bool = True, runs: bool = False) -> list[str]:
    """An instance; its stops and removals are written down instead of made."""
    calls: list[str] = []
    monkeypatch.setenv("WHERRY_INSTANCE", name)
    monkeypatch.setattr(execution, "_exists", lambda place: there)
    monkeypatch.setattr(execution.daemon_process, "answers", lambda place: runs)
    monkeypatch.setattr(execution.daemon_process, "stop", lambda place: calls.append("stop"))
    monkeypatch.setattr(execution.daemon_process, "sweep", lambda: calls.append("sweep"))
    return calls


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line with one fake study that uses no testbed."""

    def run(measure_run: Act, *words: str) -> tuple[int, str]:
        fake = type("FakeStudyOfTest", (FakeStudy,), {"measure_run": staticmethod(measure_run)})
        monkeypatch.setattr(catalog, "STUDIES", (fake,))
        code = main._run(["study", *words])
        return code, capsys.readouterr().err

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHERRY_INSTANCE", "unitstu")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("wherry.lab.sole_use._LOCKS", tmp_path)
    monkeypatch.setattr(
        execution.daemon_process, "examine", lambda: [{"name": "criu", "health": "ok", "text": "4.2 (here)"}]
    )
    return run


def test_ctrl_c_reports_progress_and_how_to_resume(tmp_path: Path, command: Command) -> None:
    calls: list[Combination] = []

    def interrupted(combination: Combination) -> list[Value]:
        calls.append(combination)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return constant_values(combination)

    code, stderr = command(interrupted, "run", "fake", "--out", "here")
    assert code == 130, stderr
    assert "3 runs count, 0 failed, 5 are missing" in stderr
    assert f"{tmp_path}/here/report.html" in stderr and "wherry study run fake --out here" in stderr
    assert "5 of 8 runs are missing" in (tmp_path / "here/report.html").read_text()
    code, stderr = command(constant_values, "run", "fake", "--out", "here")
    assert code == 0
    assert Results.read_manifest(tmp_path / "here")["sessions"][1]["before"]["criu"] == "4.2 (here)"


def test_fabric_is_recorded_in_an_interrupted_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", ends)
    monkeypatch.setattr(Testbed, "fabric", lambda self: ["two hosts"])
    results = make(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        execution._run_remaining(results, None, lambda *_: None)
    assert Results.read_manifest(tmp_path)["fabric"] == ["two hosts"]
    assert "two hosts" in page_text(results)


def test_unwritable_report_is_an_error_without_traceback(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(constant_values, "run", "fake", "--out", "here")[0] == 0
    (tmp_path / "here/summary.csv").unlink()
    (tmp_path / "here/summary.csv").mkdir()
    code, stderr = command(constant_values, "report", "here")
    assert code == 1 and "the report cannot be written; the samples are kept" in stderr and "study report" in stderr

    def refused(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "report.pdf")

    (tmp_path / "here/summary.csv").rmdir()
    monkeypatch.setattr(render.pdf, "write", refused)
    code, stderr = command(constant_values, "report", "here")
    assert code == 4 and "sudo " in stderr and "wherry study report here" in stderr and "report.pdf" in stderr
    (tmp_path / "file").touch()
    assert command(constant_values, "report", "file")[0] == 3
    (tmp_path / "here/samples.csv").unlink()
    (tmp_path / "here/samples.csv").mkdir()
    code, stderr = command(constant_values, "report", "here")
    assert code == 2 and "samples.csv cannot be read" in stderr


def test_permission_error_is_reported_without_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/there")

    monkeypatch.setattr(execution, "load", refused)
    code, stderr = command(constant_values, "report", "here")
    assert (
        code == 4
        and "/there" in stderr
        and "Permission denied" in stderr
        and "sudo " in stderr
        and "wherry study report here" in stderr
    )
