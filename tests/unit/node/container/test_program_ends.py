"""The death of any program of a move ends its waiting at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakeworld import World

from wherry.base.errors import Code, Failed
from wherry.model.records import NodeState, Phase
from wherry.move import state_machine
from wherry.node.container.deaths import how_it_ended
from wherry.node.container.progress_bounds import Bound, await_exit, reap

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
    said = await_exit(process, Bound("the program", 30, 60), b"words\n")
    os.kill(int(said.rpartition(b"!")[2]), signal.SIGKILL)
    assert process.returncode == 4 and said.startswith(b"words!!!") and len(said) > 100000


def test_a_program_that_goes_on_talking_is_given_up() -> None:
    process = program("import sys\nwhile True:\n    sys.stderr.write('words')")
    with pytest.raises(Failed, match="did not end"):
        await_exit(process, Bound("the program", 30, 0.3))
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
            world.driver.places.pop((NODE, DESTINATION), None)
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
            world.driver.places.pop((NODE, SOURCE), None)
        if name == "roll_back":
            attempts.append(name)

    world.watch(strike)
    with pytest.raises(Failed, match="hello-2 ended while it was moved"):
        world.moves.run(NODE, DESTINATION)
    row = world.store.node(NODE)
    assert len(attempts) == 1 and row and row.state == NodeState.LOST
