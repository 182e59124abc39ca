"""A move is foretold: from a sample of the node's writes, which leaves it alone; and the ledger has the outcome."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from realworld import SECONDS, RealInstance, real_instance

from wherry.base.errors import Refused
from wherry.base.paths import native_program
from wherry.node.container import pager

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(not shutil.which("mpirun"), reason="the writer is started by Open MPI"),
]
MIB = 1 << 20
MEMORY, SET, RATE = 96 * MIB, 64 * MIB, 30e6
WRITER = "wherry-writer"


@contextmanager
def cluster_of_two(role: str, **environment: str) -> Iterator[RealInstance]:
    with real_instance(role, **environment) as created:
        try:
            shutil.copy(native_program(WRITER), created.directory / WRITER)
        except Refused:
            pytest.skip("wherry-writer is not built")
        file = "kind: container\nversion: 1\nname: two\nnodes: 2\ncpus: 1\nmemory: 256MiB\nsites: [a]\n"
        created.json("up", created.file("two.yaml", file))
        yield created


@pytest.fixture(scope="module")
def two() -> Iterator[RealInstance]:
    """A cluster of two nodes."""
    with cluster_of_two("tfor") as created:
        yield created


@contextmanager
def writing(world: RealInstance) -> Iterator[None]:
    """two-1 writes 30 MB/s of 64 of its 96 MiB; at the end its memory and its connection must be right."""
    address = next(node["address"] for node in world.json("status", "two")["nodes"] if node["name"] == "two-0")
    program, port = str(world.directory / WRITER), "7400"
    peer = shlex.join([program, "peer", address, port])
    writer = shlex.join([program, "write", address, port, str(MEMORY), f"{RATE:.0f}", str(SET)])
    script = f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] && exec {peer}; exec {writer}'
    words = ("run", "two", "-n", "2", "--mpi", "openmpi", "--", "/bin/sh", "-c", script)
    job = world.start(*words, stdin=subprocess.PIPE)
    assert job.stdout and job.stderr
    assert "ready" in job.stdout.readline(), job.stderr.read()
    try:
        yield
    except BaseException:
        job.kill()
        raise
    out, err = job.communicate("", timeout=SECONDS)
    assert job.returncode == 0, (out, err)
    found = json.loads(out.splitlines()[-1])
    assert found["wrong"] == found["lost"] == 0, found


def other(world: RealInstance) -> str:
    return {"a1": "a2", "a2": "a1"}[world.hosts_of("two")["two-1"]]


@pytest.mark.skipif(bool(pager.obstacle()), reason="this kernel does not track writes")
@pytest.mark.measures("half the rate: a busy machine lets the writer run late, and the sample end late")
def test_a_dry_run_tells_what_the_node_writes(two: RealInstance) -> None:
    with writing(two):
        told = two.json("move", "two-1", "--to", other(two), "--dry-run")
        seconds, written = told["written"][-1]
        assert 0.9 < seconds < 2 and RATE / 2 < written / seconds < RATE * 2, told
        assert MEMORY < told["bytes"] < 2 * MEMORY and told["mode"] == "pre-copy" and told["rounds"]
        assert told["downtime_between"][0] < told["downtime"] < told["downtime_between"][1]
        assert two.assert_one_copy("two")["two-1"] != other(two)
        text = two("move", "two-1", "--to", other(two), "--dry-run")
        assert "it wrote" in text.stdout and "Nothing was changed" in text.stdout, text


def test_each_mode_moves_a_node_and_the_ledger_has_it(two: RealInstance) -> None:
    done = []
    with writing(two):
        for mode in ("stop", "pre-copy", "auto", "post-copy", "hybrid"):
            done.append(two.json("move", "two-1", "--to", other(two), "--mode", mode))
            two.assert_one_copy("two")
    stopped, rounded, chosen, later, _ = done
    assert not stopped["rounds"] and stopped["predicted"]["mode"] == "stop" and stopped["bytes"] > MEMORY
    assert chosen["predicted"]["mode"] in ("stop", "pre-copy")
    assert rounded["rounds"] or rounded["predicted"]["engine"] == "criu"
    found = two.json("ledger", "list")
    assert [entry["move"] for entry in found["entries"]][-5:] == [move["id"] for move in done]
    assert later["fetched"] and later["predicted"]["mode"] == "post-copy" and later["predicted"]["later"] > 0
    assert found["downtime"]["number"] >= 5 and found["downtime"]["median"] > 0
    listed = two("ledger", "list")
    assert "nine of ten within" in listed.stdout and chosen["id"] in listed.stdout
    shown = two("ledger", "show", chosen["id"]).stdout
    assert "foretold downtime" in shown and "basis" in shown
    assert two("ledger", "show", "mv-none").returncode == 3


@pytest.mark.skipif(bool(pager.obstacle()), reason="this kernel has no page map")
def test_a_kernel_that_does_not_track_writes_moves_all_the_same() -> None:
    with cluster_of_two("tfoc", WHERRY_TRACKING="comparison") as world, writing(world):
        told = world.json("move", "two-1", "--to", other(world), "--dry-run")
        assert told["engine"] == "pager-comparison" and told["written"][-1][1] > 0, told
        done = world.json("move", "two-1", "--to", other(world), "--mode", "pre-copy")
        assert len(done["rounds"]) >= 2 and done["predicted"]["engine"] == "pager-comparison"
        assert done["rounds"][0]["bytes"] > MEMORY > done["rounds"][1]["bytes"], done["rounds"]
        world.assert_one_copy("two")
        found = {finding["name"]: finding for finding in world.json("doctor")["findings"]}
        assert found["dirty pages"]["text"].startswith("by comparison") and found["downtime"]["health"] == "limited"


def test_without_the_pager_a_node_is_moved_while_it_is_frozen_and_that_is_told() -> None:
    with cluster_of_two("tfst", WHERRY_TRACKING="none") as world, writing(world):
        move = ("move", "two-1", "--to", other(world))
        told = world.json(*move, "--dry-run")
        assert (told["engine"], told["mode"], told["rounds"]) == ("criu", "stop", 0) and told["frozen"] > MEMORY, told
        (writer,) = [one for one in told["hindrances"] if one["bytes"] > MEMORY]
        assert "has memory (no rounds: " in writer["text"] and not writer["prevents"]
        refused = world(*move, "--mode", "pre-copy")
        assert refused.returncode and "its memory cannot be sent while it runs" in refused.stderr, refused
        done = world.json(*move)
        assert not done["rounds"] and done["predicted"]["engine"] == "criu" and done["bytes"] > MEMORY
        world.assert_one_copy("two")
        found = {finding["name"]: finding for finding in world.json("doctor")["findings"]}
        assert found["dirty pages"]["health"] == "limited"
        assert "a move sends all memory while the node is frozen" in found["dirty pages"]["text"]


@pytest.mark.skipif(bool(pager.obstacle()), reason="this kernel does not track writes")
@pytest.mark.measures("the downtime is less than half of the time to send the rest, also beside other programs")
def test_hybrid_switches_for_a_program_that_writes_faster_than_it_can_be_sent(two: RealInstance) -> None:
    """It would be frozen for two seconds and more while the rest is sent."""
    with writing(two):
        slow = ("--mode", "hybrid", "--bandwidth", "200Mbit/s", "--compress", "off")
        done = two.json("move", "two-1", "--to", other(two), *slow)
        assert done["fetched"]["demanded"] + done["fetched"]["background"] > SET / 2
        assert done["downtime"] < SET / (200e6 / 8) / 2 < done["fetched"]["seconds"] + 2, done
        two.assert_one_copy("two")


@pytest.mark.parametrize(
    ("mode", "why"),
    [(("hybrid", "--zstd"), "for virtual machines"), (("pre-copy", "--deadline", "5s"), "--deadline is for")],
)
def test_other_modes_are_refused_before_anything_begins(two: RealInstance, mode: tuple[str, ...], why: str) -> None:
    before = two.json("op", "list")
    refused = two("move", "two-1", "--to", other(two), "--mode", *mode)
    assert refused.returncode != 0 and why in refused.stderr
    assert two.json("op", "list") == before
