"""Several hosts are asked at once; a host that does not answer in time, or fails, is an error of its own."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import pytest

from wherry.base.errors import Code, LostContact
from wherry.fabric import ask_hosts


def test_a_silent_host_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an answer that comes later is nobody's."""
    end, clock = threading.Event(), itertools.chain([0.0, 0.0], itertools.repeat(ask_hosts.SECONDS))
    monkeypatch.setattr(ask_hosts, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def ask(host: str) -> str:
        if host == "silent":
            end.wait()
        return f"{host} answers"

    try:
        answers, errors = ask_hosts.ask_hosts(["silent", "well"], ask)
    finally:
        end.set()
    assert answers == {"well": "well answers"} and errors.keys() == {"silent"}
    assert isinstance(errors["silent"], LostContact) and "did not answer within 10 s" in str(errors["silent"])


def test_errors_are_of_the_host_alone() -> None:
    def ask(host: str) -> int:
        if host == "lost":
            raise LostContact(Code.UNREACHABLE, "host lost does not answer")
        return 1 // len(host.removeprefix("x"))

    answers, errors = ask_hosts.ask_hosts(["lost", "x", *(f"h{number}" for number in range(100))], ask)
    assert len(answers) == 100 and errors.keys() == {"lost", "x"}
    assert errors["lost"].what == "host lost does not answer" and "ZeroDivisionError" in errors["x"].why
    assert ask_hosts.ask_hosts([], ask) == ({}, {})
