"""Ctrl-C while a job is being started, at the last instant: no job continues without a waiting client."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
from rest_service import Service

import wherry.client.client
from wherry.cli import program_words
from wherry.cli.exec import exec_
from wherry.cli.main import _run
from wherry.cli.run import run
from wherry.model.records import JobState
from wherry.service.task import Task

Said = Callable[..., tuple[int, str]]


@pytest.fixture
def service(service: Service) -> Service:
    """The service, with a cluster."""
    assert _run(["up", "hello.yaml"]) == 0
    return service


def states(service: Service) -> list[JobState]:
    return [job.state for job in service.context.store.jobs()]


def test_a_cancel_between_two_looks_leaves_no_job(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the operation has looked for the last time: then the operation is done, and the job is known."""
    looks: list[bool] = []

    def cancelled(self: Task) -> bool:
        looks.append(self.operation.kind == "run" and len(looks) > 0)
        return looks[-1]

    monkeypatch.setattr(Task, "cancelled", cancelled)
    with wherry.client.Client() as client:
        job = client.run("hello", ["sleep"], 1)
        assert states(service) == [JobState.RUNNING] and client.job(job.id).state is JobState.RUNNING


@pytest.mark.parametrize("how", [(), ("--detach",)])
def test_ctrl_c_that_came_too_late_ends_the_job(
    service: Service, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], how: tuple[str, ...]
) -> None:
    real = wherry.client.Client.wait

    def wait(self: Any, id: str, *rest: Any) -> Any:
        found = real(self, id, *rest)
        self.interrupted = True
        return found

    monkeypatch.setattr(wherry.client.Client, "wait", wait)
    assert _run(["run", "hello", "-n", "1", *how, "--", "sleep"]) == 130
    assert states(service) == [JobState.CANCELLED]
    assert "ending job" in capfd.readouterr().err


def test_without_it_a_detached_job_runs(service: Service, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert _run(["run", "hello", "-n", "1", "--detach", "-o", "json", "--", "sleep"]) == 0
    assert json.loads(capfd.readouterr().out)["state"] == "running" and states(service) == [JobState.RUNNING]


# Words behind a program's name are the program's, also without `--`; and no word of ours becomes its.


@pytest.mark.parametrize(
    ("words", "before"),
    [
        ("run c -n 2 echo --detach -o json", 4),
        ("run -n 2 c echo", 4),
        ("run -n=2 c echo -n 3", 3),
        ("run c -n2 echo -n", 3),
        ("run c -np 2 --map-by node --detach -x A=b echo", 9),
        ("run --up f -n 2 echo a : -n 1 b", 5),
        ("run --up=f -n 2 echo --up g", 4),
        ("run c -n 1 --launcher-args --tag-output echo", 6),
        ("run c -n 1 a -- b", 4),
        ("exec c-0 ls --help", 2),
        ("exec --wdir / c-0 ls", 4),
    ],
)
def test_the_program_begins_where_mpirun_would_see_it(words: str, before: int) -> None:
    typed = words.split()
    assert program_words.cut(typed) == [*typed[:before], "--", *typed[before:]]


@pytest.mark.parametrize(
    "words",
    ["", "run", "run c", "run c -n 2", "run c -n 2 -- echo --detach", "status c", "run --help", "exec c-0 -- ls"],
)
def test_other_words_stay(words: str) -> None:
    assert program_words.cut(words.split()) == words.split()


def test_every_option_without_a_value_is_known() -> None:
    flags = {
        f"--{name.replace('_', '-')}"
        for command in (run, exec_)
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
        if parameter.default is False
    }
    assert flags == program_words._ALONE - {"--help", "-h", "--version"}
