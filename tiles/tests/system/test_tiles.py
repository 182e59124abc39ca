"""Tiles from the command line: on this machine, and on two emulated hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance, eventually, real_instance

from wherry.base.errors import WherryError
from wherry.base.paths import native_program
from wherry.client import Client

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hosts of the fabric are made by root")
TOP = Path(__file__).parents[3]
TWO_SITES, TWO_HOSTS = str(TOP / "examples/two-sites.yaml"), str(TOP / "tiles/examples/tiles-two-hosts.yaml")
LIBRARY = native_program("wherry-tiles").parents[1] / "lib" / "tile"


@pytest.fixture
def some() -> Iterator[RealInstance]:
    """An instance without tiles."""
    with real_instance("ttil") as created:
        yield created
    assert created.all_resources()["processes"] == [] and not created.instance.run.exists()


def move_round(world_: RealInstance, process: int, tiles: list[int], modes: list[str]) -> int:
    """Moves a running process between tiles in each mode; returns the number of moves."""
    done = 0
    for mode in modes:
        for tile in tiles:
            cost = world_.json("tile", "move", str(process), "--to", str(tile), "--mode", mode)
            assert cost["to"] == tile and 0 < cost["first_ns"] <= cost["all_ns"]
            done += 1
    return done


def test_tiles_on_this_machine(some: RealInstance) -> None:
    rings = f"rings:\n  - - {{name: echo, program: {LIBRARY}/names, words: [serve, echo, '1'], tile: 3}}\n"
    up = some.json("tile", "up", some.file("tiles.yaml", f"kind: tiles\nversion: 1\ntiles: 4\ncores: 3\n{rings}"))
    assert up["tiles"] == 4 and up["servers"] == {"echo": 1}
    ranks = some("tile", "run", "--ranks", "3", f"{LIBRARY}/mpi-check", "3")
    assert (ranks.returncode, ranks.stdout) == (0, "ok, 3 rounds\n")
    answer = some.json("tile", "run", f"{LIBRARY}/names", "ask", "echo")
    assert answer["status"] == 0 and "process 1 port" in answer["output"]
    counting = some.start("tile", "run", "--tile", "0", f"{LIBRARY}/count", "30", "200000000")
    assert counting.stdout and counting.stdout.readline() == "1\n"
    (process,) = [p for p in some.json("tile", "ps")["processes"] if p["program"] == "count"]
    moves = move_round(some, process["process"], [1, 2, 0], ["faithful", "direct", "handoff", "precopy"])
    output = some("tile", "move", str(process["process"]), "--to", "1").stdout
    assert f"process {process['process']} moved from tile 0 to tile 1 (precopy)." in output and "downtime was" in output
    out, err = counting.communicate(timeout=SECONDS)
    assert counting.returncode == 0 and out.splitlines()[:-1] == [str(n) for n in range(2, 31)], err
    (ended,) = [p for p in some.json("tile", "ps")["processes"] if p["program"] == "count"]
    assert (ended["state"], ended["moves"], ended["tile"]) == ("ended", moves + 1, 1)
    assert some("tile", "down").stdout == "the tiles are down.\n"
    assert some("tile", "ps").returncode != 0


@pytest.mark.smoke
def test_tiles_on_two_hosts(some: RealInstance) -> None:
    """Ranks of an MPI program are moved between hosts without changing its output."""
    some.json("fabric", "up", TWO_SITES)
    some.json("tile", "up", TWO_HOSTS)
    assert [tile["host"] for tile in some.json("tile", "ps")["tiles"]] == [0, 0, 0, 1, 1, 1]
    assert "6 tiles are up on a1, b1; 0 processes run there" in some("status").stdout
    refused = some("host", "drain", "b1")
    assert refused.returncode == 5 and "tiles run in the network of" in refused.stderr, refused.stderr
    running = some.start("tile", "run", "--ranks", "4", f"{LIBRARY}/mpi-check", "150")

    with Client(some.instance, start=False) as client:

        def ranks() -> dict[int, int]:
            """Process -> tile of each running rank."""
            return {p["process"]: p["tile"] for p in client.tiles()["processes"] if p["state"] == "running"}

        eventually(lambda: len(ranks()), 4)
        at = ranks()
        free = next(other for other in range(6) if other not in at.values())
        far = next(process for process, tile in at.items() if tile // 3 != free // 3)
        with pytest.raises(WherryError, match="hosts"):
            client.move_tile_process(far, free, "handoff")
        for mode in ("faithful", "direct", "precopy"):
            other_host = [tile for tile in range(6) if tile not in at.values() and tile // 3 != at[far] // 3]
            cost = client.move_tile_process(far, other_host[0], mode)
            assert (cost["from"], cost["to"]) == (at[far], other_host[0])
            at[far] = other_host[0]
        assert running.poll() is None and ranks() == at
    out, err = running.communicate(timeout=SECONDS)
    assert (running.returncode, out) == (0, "ok, 150 rounds\n"), err


def test_only_down_all_removes_hosts_that_have_tiles(some: RealInstance) -> None:
    some.json("fabric", "up", TWO_SITES)
    some.json("tile", "up", TWO_HOSTS, "--balance")
    refused = some("fabric", "down")
    assert refused.returncode == 5 and "tiles run in the network of" in refused.stderr, refused.stderr
    some.kill_daemon()
    refused = some("fabric", "down")
    assert refused.returncode == 5 and "wherry tile down" in refused.stderr, "the next daemon has their record, too"
    assert some.json("down", "--all", "--yes")["removed"]["tiles"] == ["6 tiles"]
