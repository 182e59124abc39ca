"""When a step of a move is given up: time without progress counts, unless no process could run in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakeworld import World

import waiting
from wherry.base.errors import Code, Failed
from wherry.model.records import NodeState, Phase
from wherry.move import state_machine
from wherry.node.container import progress_bounds
from wherry.node.container.deaths import how_it_ended
from wherry.node.container.progress_bounds import ProgressProbe, StallTimeout, await_exit, first_of, reap, work_of


class Clock:
    """Seconds that pass when a test adds them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("wherry.node.container.progress_bounds.time.monotonic", lambda: self.now)


def test_a_step_that_is_slow_is_not_given_up_and_one_that_stands_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    moves = True
    timeout = progress_bounds.StallTimeout("it", 1.0, 100.0, lambda: moves)
    for _ in range(50):
        clock.now += 1.0
        timeout.check()
    moves = False
    with pytest.raises(Failed, match="no progress for 1.0 s"):
        for _ in range(50):
            clock.now += 0.05
            timeout.check()
    assert 51.0 <= clock.now <= 51.1
    moves = True
    with pytest.raises(Failed, match="waited 100 s"):
        while clock.now < 200:
            clock.now += 1.0
            timeout.check()


def test_a_machine_that_did_not_run_us_did_not_run_the_step_either(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    timeout = progress_bounds.StallTimeout("it", 1.0, 100.0, lambda: False)
    clock.now = 30.0
    timeout.check()


def test_work_is_seen_and_its_absence_too() -> None:
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy, subprocess.Popen(["sleep", "60"]) as idle:
        try:
            works, sleeps = progress_bounds.work_of(lambda: [busy.pid]), progress_bounds.work_of(lambda: [idle.pid])
            assert works() and works()
            waiting.until(lambda: not sleeps(), "a program that sleeps, once it has begun")
            os.kill(busy.pid, signal.SIGSTOP)
            waiting.until(lambda: not works(), "a program that is stopped, once it is")
        finally:
            busy.kill()
            idle.kill()


@pytest.mark.parametrize("rate", [None, 9e8, 9e6, 9e5])
def test_a_slow_link_has_time(rate: float | None) -> None:
    """For all of a node at half the rate, and for a piece of it while nothing is acknowledged."""
    memory = 512 << 20
    assert progress_bounds.total(memory, rate) > memory * 8 / ((rate or 320e6) / 2)
    assert progress_bounds.total(memory, rate) >= progress_bounds.total(memory)
    assert progress_bounds.total(memory) < 60, "which no link makes slower"
    assert progress_bounds.stall_sending(rate, 0.1) >= 2.8 + (65536 * 8 / rate if rate else 0)


# Working programs of a move are distinguished from hanging ones.


SPIN = """
import hashlib, threading, time
def spin():  # without Python's lock, for which a thread sleeps
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)
threading.Thread(target=spin, daemon=True).start()
print("spins", flush=True)
time.sleep(60)
"""


def test_a_thread_that_waits_for_a_processor_works() -> None:
    """Also between two ticks of the clock by which the kernel counts, and beside a main thread that sleeps."""
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "spins\n"
            probe = work_of(lambda: [process.pid])
            waiting.until(lambda: probe() and probe(), "it spins")
            assert all(probe() for _ in range(20))
        finally:
            process.kill()


def test_a_process_that_sleeps_or_has_ended_does_not() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        probe = work_of(lambda: [process.pid])
        for _ in range(200):
            if not probe():
                break
        assert not probe()
        process.kill()
    assert not probe() and not probe()


def test_of_several_probes_those_behind_one_that_sees_progress_are_not_asked() -> None:
    asked = list[str]()

    def probe(name: str, *seen: bool) -> ProgressProbe:
        left = iter(seen)

        def probed() -> bool:
            asked.append(name)
            return next(left)

        return probed

    either = first_of(probe("cheap", True, False, False), probe("dear", True, False))
    assert [either(), either(), either()] == [True, True, False]
    assert asked == ["cheap", "cheap", "dear", "cheap", "dear"]


# The death of any program of a move ends its waiting at once.


NODE, SOURCE, DESTINATION = "hello-2", "b1", "a2"


def program(text: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> None:
    """Waits without taking its status."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_how_a_program_ended_is_told_until_it_was_waited_for() -> None:
    with program("input()") as running:
        assert how_it_ended(running) == ""
        running.kill()
        ended(running)
        assert how_it_ended(running) == how_it_ended(running, told=False) == "was killed by SIGKILL"
        running.wait()
        assert how_it_ended(running) == ""
    with program("raise SystemExit(3)") as failed:
        ended(failed)
        assert how_it_ended(failed) == "" and how_it_ended(failed, told=False) == "ended with exit code 3"
    with program("") as well:
        ended(well)
        assert how_it_ended(well) == how_it_ended(well, told=False) == ""


def test_a_program_has_ended_whatever_its_child_keeps_open() -> None:
    text = (
        "import os, subprocess, sys\nsys.stderr.write(input() + '!' * 100000)\nsys.stderr.flush()\n"
        "print(subprocess.Popen(['sleep', '3600']).pid, file=sys.stderr, flush=True)\nos._exit(4)"
    )
    process = program(text)
    said = await_exit(process, StallTimeout("the program", 30, 60), b"words\n")
    os.kill(int(said.rpartition(b"!")[2]), signal.SIGKILL)
    assert process.returncode == 4 and said.startswith(b"words!!!") and len(said) > 100000


def test_a_program_that_goes_on_talking_is_given_up() -> None:
    process = program("import sys\nwhile True:\n    sys.stderr.write('words')")
    with pytest.raises(Failed, match="did not end"):
        await_exit(process, StallTimeout("the program", 30, 0.3))
    reap(process)
    assert process.returncode == -signal.SIGKILL


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(state_machine, "_PAUSE", 0.0)
    world = World(tmp_path, rounds=True)
    world.make()
    return world


@pytest.mark.parametrize("step", ["prepare", "round", "freeze", "transfer", "restore"])
def test_a_program_that_dies_in_a_step_ends_the_move_before_the_next(world: World, step: str) -> None:
    calls = list[str]()

    def strike(name: str) -> None:
        calls.append(name)
        if name == step:
            world.driver.problem = "at a2: the receiver was killed by SIGKILL"

    world.watch(strike)
    with pytest.raises(Failed, match="a program of the move ended: at a2: the receiver was killed by SIGKILL"):
        world.moves.run(NODE, DESTINATION)
    steps = ["prepare", "round", "freeze", "transfer", "restore"]
    assert [name for name in calls if name in steps and steps.index(name) > steps.index(step)] == []
    world.driver.problem = ""
    world.assert_one_copy(NODE, SOURCE)
    assert world.store.moves()[-1].phase == Phase.ROLLED_BACK


def test_a_hold_that_has_ended_ends_the_move(world: World) -> None:
    def strike(name: str) -> None:
        if name == "freeze":
            world.fabric.holds.clear()

    world.watch(strike)
    with pytest.raises(Failed, match="the hold for hello-2"):
        world.moves.run(NODE, DESTINATION)
    world.assert_one_copy(NODE, SOURCE)


def test_a_node_that_ended_after_the_commit_is_told_without_further_attempts(world: World) -> None:
    attempts = list[str]()

    def strike(name: str) -> None:
        if name == "thaw":
            attempts.append(name)
            world.driver.placements.pop((NODE, DESTINATION), None)
            raise Failed(Code.FAILED, "the node ended")

    world.watch(strike)
    with pytest.raises(Failed, match="hello-2 ended while it was moved"):
        world.moves.run(NODE, DESTINATION)
    row = world.store.node(NODE)
    assert len(attempts) == 1 and row and row.state == NodeState.LOST


def test_a_node_that_ended_before_the_commit_is_told_without_further_attempts(world: World) -> None:
    attempts = list[str]()

    def strike(name: str) -> None:
        if name == "transfer":
            world.driver.placements.pop((NODE, SOURCE), None)
        if name == "roll_back":
            attempts.append(name)

    world.watch(strike)
    with pytest.raises(Failed, match="hello-2 ended while it was moved"):
        world.moves.run(NODE, DESTINATION)
    row = world.store.node(NODE)
    assert len(attempts) == 1 and row and row.state == NodeState.LOST
