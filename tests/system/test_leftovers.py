"""`wherry down --all` leaves nothing of an instance on the machine, whatever was under way and whoever was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from realworld import World, eventually, world

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")


@pytest.fixture
def clean() -> Iterator[World]:
    """An instance of which there is nothing, and after the test again nothing."""
    with world("tlft", WHERRY_FAULTS="1") as made:
        before = made.everything()
        assert not any(names for kind, names in before.items() if kind != "interfaces"), before
        yield made
        assert made("down", "--all").returncode == 0
        assert eventually(made.everything, before) == before


def test_down_all_after_a_job_a_move_and_a_killed_daemon(clean: World) -> None:
    clean.up("two", 2)
    with clean.ring("two", "openmpi", ranks=2, seconds=120) as ring:
        assert clean.move("two-1", "b1")["phase"] == "done"
        there = clean.everything()
        assert all(there.values()), there
        clean.kill_daemon()
        assert ring.running()
        down = clean.json("down", "--all")
        assert down["removed"]["namespaces"] and down["removed"]["processes"]
        assert eventually(ring.running, False) is False
        assert not any(found for kind, found in clean.everything().items() if kind != "interfaces")


@pytest.mark.parametrize("done", ["network of two", "1 of 2: "])
def test_down_all_after_a_half_made_cluster(clean: World, done: str) -> None:
    """The daemon is killed as soon as it has told of a step; the client before it, as it would start the next one."""
    client = clean.start("up", clean.cluster_file("two", 2))
    assert client.stderr
    assert any(line.startswith(done) for line in iter(client.stderr.readline, ""))
    client.kill()
    clean.kill_daemon()
    client.communicate()
    assert clean("daemon", "status").returncode == 7
    assert clean.json("down", "--all")["removed"]["namespaces"]


@pytest.mark.parametrize("phase", ["restore", "commit"])
def test_down_all_in_the_middle_of_a_move(clean: World, phase: str) -> None:
    clean.up("two", 2)
    clean.begin_move("two-1", "b1", fault=f"{phase}:kill")
    assert eventually(lambda: clean("daemon", "status").returncode, 7) == 7
    places = [path.name for path in (clean.instance.run / "nodes").iterdir()]
    assert sorted(places) == ["two-0@a1", "two-1@a2", "two-1@b1"]
    clean.json("down", "--all")


def test_down_all_ends_programs_of_a_killed_daemon(clean: World) -> None:
    """They end by themselves when it is gone, but for those that hang."""
    clean.up("two", 2)
    clean.begin_move("two-1", "b1", fault="prepare:pause:20")
    assert eventually(lambda: any("wherry-hold" in words for words in clean.movers().values()), True)
    for pid in clean.movers():
        os.kill(pid, signal.SIGSTOP)
    clean.kill_daemon()
    clean.json("down", "--all")
    for pid in clean.movers():  # those that wait for their first request end when they can
        os.kill(pid, signal.SIGCONT)


def test_down_all_while_a_job_runs(clean: World) -> None:
    """A job and a move under way; the daemon is asked to end, not killed."""
    clean.up("two", 2)
    with clean.ring("two", "openmpi", ranks=2, seconds=120):
        clean.begin_move("two-1", "b1", fault="transfer:pause:5")
        clean.json("down", "--all")


def test_down_all_is_idempotent_and_touches_no_other_instance(clean: World) -> None:
    with world("tlfb") as neighbour:
        neighbour.up("two", 2)
        there = neighbour.everything()
        clean.up("two", 2)
        clean.json("down", "--all")
        again = clean("down", "--all")
        assert again.returncode == 0 and "nothing" in again.stdout
        assert neighbour.everything() == there
        assert set(neighbour.assert_one_copy("two")) == {"two-0", "two-1"}
