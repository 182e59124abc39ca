"""`wherry down --all` removes all resources of an instance, whatever was running or killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from realworld import RealInstance, eventually, real_instance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")


@pytest.fixture
def clean() -> Iterator[RealInstance]:
    """An instance without any resources, which must have none after the test."""
    with real_instance("tlft", WHERRY_FAULTS="1") as created:
        before = created.all_resources()
        assert not any(names for kind, names in before.items() if kind != "interfaces"), before
        yield created
        assert created("down", "--all", "--yes").returncode == 0
        assert eventually(created.all_resources, before) == before


@pytest.mark.smoke
def test_down_all_after_a_job_a_move_and_a_killed_daemon(clean: RealInstance) -> None:
    clean.up("two", 2)
    with clean.ring("two", "openmpi", ranks=2, seconds=120, pause=10) as ring:
        assert clean.move("two-1", "b1")["phase"] == "done"
        before = clean.all_resources()
        assert all(before.values()), before
        clean.kill_daemon()
        assert ring.running()
        down = clean.json("down", "--all", "--yes")
        assert down["removed"]["namespaces"] and down["removed"]["processes"]
        assert eventually(ring.running, False) is False
        assert not any(resources for kind, resources in clean.all_resources().items() if kind != "interfaces")


@pytest.mark.parametrize("done", ["network of two", "1 of 2: "])
def test_down_all_after_a_half_made_cluster(clean: RealInstance, done: str) -> None:
    """The client and then the daemon are killed after a progress message; the client first, because it would start a
    new daemon."""
    client = clean.start("up", clean.cluster_file("two", 2))
    assert client.stderr
    assert any(line.startswith(done) for line in iter(client.stderr.readline, ""))
    client.kill()
    clean.kill_daemon()
    client.communicate()
    assert eventually(lambda: clean("daemon", "status").returncode, 7) == 7, "a killed process takes a moment to end"
    assert clean.json("down", "--all", "--yes")["removed"]["namespaces"]


@pytest.mark.parametrize("phase", ["restore", "commit"])
def test_down_all_in_the_middle_of_a_move(clean: RealInstance, phase: str) -> None:
    clean.up("two", 2)
    clean.begin_move("two-1", "b1", fault=f"{phase}:kill")
    assert eventually(lambda: clean("daemon", "status").returncode, 7) == 7
    places = [path.name for path in (clean.instance.run / "nodes").iterdir()]
    assert sorted(places) == ["two-0@a1", "two-1@a2", "two-1@b1"]
    clean.json("down", "--all", "--yes")


def test_down_all_ends_programs_of_a_killed_daemon(clean: RealInstance) -> None:
    """Programs end by themselves when their daemon is gone, except for hung ones."""
    clean.up("two", 2)
    with clean.held_move("two-1", "b1", "prepare"):
        assert any("wherry-hold" in words for words in clean.move_processes().values())
        for pid in clean.move_processes():
            os.kill(pid, signal.SIGSTOP)
        clean.kill_daemon()
    clean.json("down", "--all", "--yes")
    for pid in clean.move_processes():  # idle ones end by themselves
        os.kill(pid, signal.SIGCONT)


def test_down_all_during_a_job_and_a_move(clean: RealInstance) -> None:
    """A job and a move are running; the daemon is stopped regularly."""
    clean.up("two", 2)
    with clean.ring("two", "openmpi", ranks=2, seconds=120):
        with clean.held_move("two-1", "b1", "transfer"):
            clean.json("down", "--all", "--yes")


def test_down_all_is_idempotent_and_touches_no_other_instance(clean: RealInstance, four: RealInstance) -> None:
    before = four.all_resources()
    clean.up("two", 2)
    clean.json("down", "--all", "--yes")
    again = clean("down", "--all", "--yes")
    assert again.returncode == 0 and "nothing" in again.stdout
    assert four.all_resources() == before
    assert set(four.assert_one_copy("four")) == {f"four-{n}" for n in range(4)}
