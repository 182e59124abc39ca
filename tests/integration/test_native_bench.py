"""wherry-pingpong and wherry-linpack on this machine alone: their output, and their refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import native_runs
import pytest

import waiting
from wherry.base.errors import Refused
from wherry.base.paths import native_program
from wherry.lab import native_mpirun

LAUNCHERS = {
    "openmpi": "mpirun.openmpi --oversubscribe --mca btl tcp,self --mca btl_tcp_if_include lo",
    "mpich": "mpiexec.mpich",
}


def built(name: str) -> str:
    try:
        return str(native_program(name))
    except Refused:
        pytest.skip(f"{name} was not built: its compiler or library is not on this machine")


def pingpong(flavour: str, ranks: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = LAUNCHERS[flavour].split()
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]} on this machine")
    words = [*command, "-n", str(ranks), built(f"wherry-pingpong-{flavour}"), *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=240, env=native_runs.environment())


@pytest.mark.parametrize("flavour", sorted(LAUNCHERS))
def test_pingpong_prints_a_line_for_each_size(flavour: str) -> None:
    counts = ("--warm", "5", "--repeat", "7", "--above", "1024", "--few", "3")
    done = pingpong(flavour, 2, "--max", "4096", "--also", "1500", *counts)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["bytes"] for line in lines] == [*(2**power for power in range(13)), 1500]
    assert {line["bytes"]: (line["warm"], line["repeat"]) for line in lines if line["bytes"] >= 1024} == {
        1024: (5, 7),
        2048: (3, 3),
        4096: (3, 3),
        1500: (3, 3),
    }
    for line in lines:
        assert 0 < line["min"] <= line["median"] <= line["p95"] <= line["max"] and line["errors"] == 0
        assert line["bits_per_second"] == pytest.approx(8 * line["bytes"] / line["mean"], rel=1e-4)


@pytest.mark.parametrize("flavour", ["openmpi", pytest.param("mpich", marks=pytest.mark.thorough)])
def test_pingpong_counts_what_its_messages_cause(flavour: str) -> None:
    """Over loopback each message is a frame at least; sizes that are asked for, within a budget of bytes."""
    sizes = ("--only", "100", "--only", "4096", "--repeat", "50", "--warm", "2", "--budget", "40960")
    done = pingpong(flavour, 2, *sizes, "--count", "lo", "--pause", "1")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    marks = [next(iter(line.items())) for line in lines if len(line) == 1]
    assert marks == [(mark, size) for size in (0, 100, 4096) for mark in ("begin", "end")]
    found = [line for line in lines if "counts" in line]
    assert [(line["bytes"], line["repeat"], line["warm"]) for line in found] == [(100, 50, 2), (4096, 10, 2)]
    for line in found:
        counts, messages = line["counts"], 2 * line["repeat"]
        assert counts["card_interrupts"] is None, "loopback has no card"
        assert all(counts[name] >= 0 for name in ("switches", "own_switches", "interrupts", "softirqs"))
        if flavour == "openmpi":  # MPICH has shared memory here
            assert counts["frames"] >= messages and counts["bytes"] >= messages * line["bytes"]


def test_ranks_of_mpich_over_tcp_end_as_those_on_nodes_do() -> None:
    """As the lab runs them natively; the library is in the ranks, and their messages are right."""
    if not shutil.which(native_mpirun.LAUNCHERS["mpich"]):
        pytest.skip("no MPICH on this machine")
    command = [native_mpirun.LAUNCHERS["mpich"], *native_mpirun.options("mpich", "tcp"), "-n", "2"]
    env = {**os.environ, **native_mpirun.environment("mpich", "tcp")}
    done = subprocess.run(
        [*command, "cat", "/proc/self/maps"], capture_output=True, text=True, timeout=waiting.bound(), env=env
    )
    assert "libwherry-finalize.so" in done.stdout, done.stderr
    words = [*command, built("wherry-pingpong-mpich"), "--max", "8"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=waiting.bound(), env=env)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 4, done.stderr


@pytest.mark.parametrize("ranks", [1, 3])
def test_pingpong_takes_two_ranks(ranks: int) -> None:
    done = pingpong("openmpi", ranks, "--max", "1")
    assert done.returncode != 0 and "exactly two ranks" in done.stderr


@pytest.mark.parametrize("options", [("--max", "0"), ("--max", "2g"), ("--repeat", "-1"), ("word",), ("--pause", "1")])
def test_pingpong_refuses_wrong_options(options: tuple[str, ...]) -> None:
    done = pingpong("openmpi", 2, *options)
    assert done.returncode != 0 and "usage:" in done.stderr


def test_pingpong_says_how_many_sizes_it_takes() -> None:
    sizes = [word for size in range(1, 17) for word in ("--only", str(size))]
    assert pingpong("openmpi", 2, *sizes, "--repeat", "1", "--warm", "0").returncode == 0
    done = pingpong("openmpi", 2, *sizes, "--only", "17")
    assert done.returncode != 0 and "too many sizes: at most 16" in done.stderr


def linpack(*options: str) -> subprocess.CompletedProcess[str]:
    words = [built("wherry-linpack"), *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


def test_linpack_solves_and_checks() -> None:
    done = linpack("--n", "300")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["n"] == 300 and found["residual"] < 16 and found["factor_seconds"] > 0 and found["solve_seconds"] > 0


@pytest.mark.parametrize("options", [("--n", "0"), ("--n", "x"), ("3000",)])
def test_linpack_refuses_wrong_options(options: tuple[str, ...]) -> None:
    done = linpack(*options)
    assert done.returncode == 2 and "usage:" in done.stderr


def test_the_crowd_tells_its_longest_pause_and_that_all_is_as_it_was() -> None:
    words = [built("wherry-crowd"), "5", str(1 << 20), "3", "40", "6"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
        assert crowd.stdin and crowd.stdout and crowd.stdout.readline() == "ready\n"
        children = Path(f"/proc/{crowd.pid}/task/{crowd.pid}/children").read_text().split()
        assert len(children) == 4
        one = Path("/proc", children[0])
        assert len(list((one / "task").iterdir())) == 1 + 3
        assert len((one / "maps").read_text().splitlines()) > 40
        assert sum("wherry-crowd." in os.readlink(file) for file in (one / "fd").iterdir()) == 6
        os.kill(int(children[1]), signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(int(children[1]), signal.SIGCONT)
        crowd.stdin.close()
        told = json.loads(crowd.stdout.read())
    assert crowd.returncode == 0 and told["processes"] == 5 and told["wrong"] == 0
    assert told["gap"] >= 0.19


def test_the_crowd_finds_what_is_wrong() -> None:
    words = [built("wherry-crowd"), "2", str(1 << 20), "0", "0", "3"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
        assert crowd.stdin and crowd.stdout and crowd.stdout.readline() == "ready\n"
        Path(f"/tmp/wherry-crowd.{crowd.pid}.1").write_bytes(b"other")
        crowd.stdin.close()
        told = json.loads(crowd.stdout.read())
    assert crowd.returncode == 1 and told["wrong"] == 1
    assert not list(Path("/tmp").glob(f"wherry-crowd.{crowd.pid}.*"))
