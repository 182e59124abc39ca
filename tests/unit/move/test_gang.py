import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from wherry.base.errors import Code, Failed
from wherry.move import gang as gang_module
from wherry.move.gang import Gang


def nothing() -> None:
    pass


def test_all_freeze_when_the_last_is_ready() -> None:
    gang, frozen, late = Gang("abc"), list[str](), threading.Event()

    def move(member: str) -> None:
        if member == "c":
            late.wait(10)
        gang.await_all(member, nothing, None)
        frozen.append(member)

    with ThreadPoolExecutor(3) as pool:
        moves = [pool.submit(move, member) for member in "abc"]
        threading.Event().wait(0.2)
        assert frozen == []
        late.set()
        for one in moves:
            one.result(10)
    assert sorted(frozen) == ["a", "b", "c"]


def test_nobody_waits_for_a_member_that_has_left() -> None:
    gang = Gang("ab")
    gang.leave("b")
    gang.await_all("a", nothing, None)
    gang.leave("a")
    gang.leave("a")


def test_who_waits_is_cancelled() -> None:
    gang = Gang("ab")

    def cancelled() -> None:
        raise Failed(Code.CANCELLED, "the move was cancelled")

    with pytest.raises(Failed):
        gang.await_all("a", cancelled, None)
    gang.leave("a")
    gang.await_all("b", nothing, None)


def test_a_ready_member_does_rounds_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_module, "_PATIENCE", 0.05)
    gang, rounds, looks = Gang("ab"), list[int](), list[int]()

    def look() -> None:
        looks.append(1)
        if len(looks) == 40:
            gang.leave("b")

    gang.await_all("a", look, lambda: rounds.append(1))
    assert len(rounds) == 3


def test_who_is_busy_when_all_others_are_ready_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_module, "_PATIENCE", 0.05)
    gang, busy, done = Gang("ab"), threading.Event(), threading.Event()

    def again() -> None:
        busy.set()
        done.wait(10)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gang.await_all, "a", nothing, again)
        assert busy.wait(10)
        other = pool.submit(gang.await_all, "b", nothing, None)
        threading.Event().wait(0.2)
        assert not other.done() and not first.done()
        done.set()
        first.result(10), other.result(10)
