"""Clusters whose nodes have their /tmp on their hosts' disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import RealInstance, real_instance

import waiting
from wherry.node.container.criu.probe import find as find_criu
from wherry.node.container.disk import lacking

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(bool(lacking()), reason=f"this machine {lacking()}"),
]
SIZE = 96 << 20


@pytest.fixture(scope="module")
def two() -> Iterator[RealInstance]:
    """An instance with a cluster of two nodes."""
    with real_instance("ttmp") as created:
        created.up("disk", 2, "64MiB", "tmp: 96MiB\n")
        yield created


def images(wherry: RealInstance) -> list[Path]:
    """The files of its nodes' disks."""
    return sorted((wherry.instance.state / "disks").iterdir())


@pytest.mark.skipif(not find_criu().works, reason="there is no CRIU that works")
def test_a_job_uses_it_and_moves_with_it(two: RealInstance) -> None:
    """More than would fit into its node's memory; below /tmp is the directory in which it runs, too."""
    go = two.directory / "go"
    program = (
        "dd if=/dev/urandom of=/tmp/scratch bs=1M count=70 2>/dev/null; sha256sum </tmp/scratch; echo ready >&2; "
        f"until test -e {go}; do sleep 0.1; done; sha256sum </tmp/scratch; pwd"
    )
    job = two.start("run", "disk", "-n", "1", "--", "/bin/sh", "-c", program)
    try:
        assert job.stderr
        waiting.until(lambda: job.stderr.readline() == "ready\n", lambda: "the program did not say ready")
        for host in ("b1", "a1"):
            two.move("disk-0", host)
        assert [path.name for path in images(two)] == [f"{node}@{host}" for node, host in two.hosts_of("disk").items()]
    finally:
        go.touch()
    before, after, directory = job.communicate(timeout=waiting.bound())[0].splitlines()
    assert before == after and directory == str(two.directory)
    usage = two.json("node", "show", "disk-0")["usage"]
    assert 70 << 20 <= usage["disk"] < usage["disk_limit"] <= SIZE
    assert two("exec", "disk-0", "--", "/bin/rm", "/tmp/scratch").returncode == 0


def test_a_full_one_is_told(two: RealInstance) -> None:
    done = two("run", "disk", "-n", "1", "--", "/bin/sh", "-c", "exec dd if=/dev/zero of=/tmp/big bs=1M count=300")
    assert done.returncode == 1 and "No space left on device" in done.stderr
    assert "the disk of node disk-0 for /tmp is full" in done.stderr and "for instance tmp: " in done.stderr
    assert two("exec", "disk-0", "--", "/bin/rm", "/tmp/big").returncode == 0


def test_a_host_without_room_makes_no_node(two: RealInstance) -> None:
    before = images(two)
    done = two("up", two.cluster_file("huge", 1, more="tmp: 900TiB\n"))
    assert done.returncode and "and 900.0 TiB are wanted for /tmp" in done.stderr and "tmp: memory" in done.stderr
    assert images(two) == before and two("status", "huge").returncode


def test_it_cannot_be_changed_while_the_cluster_runs_and_goes_with_it(two: RealInstance) -> None:
    done = two("up", two.cluster_file("disk", 2, "64MiB", "tmp: disk\n"))
    assert done.returncode and "tmp of a running cluster cannot be changed" in done.stderr
    assert two("down", "disk", "--yes").returncode == 0
    assert images(two) == []
    listed = subprocess.check_output(["losetup", "--list", "--noheadings", "--output", "BACK-FILE"], text=True)
    assert str(two.instance.state) not in listed
