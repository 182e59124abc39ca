"""Cgroups: layouts parsed from mountinfo, v2 on a plain directory, and the machine's own hierarchy (root)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import waiting
from names import own_name
from wherry.base.errors import Code, Failed
from wherry.fabric.cgroup import PERIOD, TASKS, Cgroup, Layout, machine_layout, read_layout, sweep

TREE = f"wherry-{own_name('tcgr')}"
SEPARATE = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
"""
COMOUNTED = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"


def test_controllers_with_separate_hierarchies() -> None:
    layout = read_layout(SEPARATE)
    assert layout.root("cpu") == Path("/sys/fs/cgroup/cpu")
    assert layout.root("freezer") == layout.roots()[0] == Path("/sys/fs/cgroup/freezer")
    assert layout.missing() == ["pids"]
    assert not layout.is_v2("freezer")


def test_controllers_that_share_a_hierarchy() -> None:
    layout = read_layout(COMOUNTED)
    assert layout.roots() == [Path("/sys/fs/cgroup/cpu,cpuacct")]
    assert layout.missing() == ["memory", "freezer", "pids"]


def test_v2_has_controllers_that_v1_lacks(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    unified = f"41 31 0:38 / {tmp_path} rw,relatime - cgroup2 cgroup2 rw\n"
    both = read_layout(COMOUNTED + unified)
    assert both.is_v2("memory") and both.is_v2("freezer") and not both.is_v2("cpu")
    assert both.mixed() and not read_layout(COMOUNTED).mixed() and not read_layout(unified).mixed()
    alone = read_layout(unified)
    assert alone.missing() == ["cpu", "cpuacct"]
    assert alone.roots() == [tmp_path]


@pytest.fixture
def v2(tmp_path: Path) -> Layout:
    """A plain directory in place of a v2 hierarchy, to check which files are written."""
    return Layout({}, tmp_path, frozenset({"cpu", "cpuacct", "memory", "pids", "freezer"}))


def test_files_of_a_v2_hierarchy(v2: Layout, tmp_path: Path) -> None:
    node = Cgroup("wherry-x/a1/n-0", v2)
    node.create()
    directory = tmp_path / "wherry-x/a1/n-0"
    assert (tmp_path / "wherry-x/cgroup.subtree_control").exists()
    assert not (directory / "cgroup.subtree_control").exists(), "a node is a leaf"
    node.limit(cpus=1.5, memory=2**28)
    assert (directory / "cpu.max").read_text() == f"{PERIOD * 3 // 2} {PERIOD}"
    assert (directory / "memory.max").read_text() == str(2**28)
    assert (directory / "pids.max").read_text() == str(TASKS)
    node.limit(cpus=None, memory=None)
    assert (directory / "pids.max").read_text() == "max", "on its way a node also has the processes that restore it"
    assert (directory / "cpu.max").read_text() == f"max {PERIOD}"
    node.weight(2)
    node.prefer(True)
    node.prefer(True)
    assert (directory / "cpu.weight").read_text() == "2000"
    node.prefer(False)
    assert (directory / "cpu.weight").read_text() == "200"
    (directory / "cpu.stat").write_text("usage_usec 2500000\nthrottled_usec 500000\n")
    assert (node.cpu_seconds(), node.throttled()) == (2.5, 0.5)
    assert node.freezer_dir() == str(directory)


def test_freeze_that_does_not_complete_times_out(v2: Layout, tmp_path: Path) -> None:
    node = Cgroup("wherry-x/n", v2)
    node.create()
    (tmp_path / "wherry-x/n/cgroup.events").write_text("populated 1\nfrozen 0\n")
    with pytest.raises(Failed) as error:
        node.freeze(timeout=0.01)
    assert error.value.code == Code.TIMED_OUT
    (tmp_path / "wherry-x/n/cgroup.events").write_text("populated 1\nfrozen 1\n")
    node.freeze(timeout=0.01)


@pytest.fixture
def group() -> Iterator[Cgroup]:
    if os.geteuid() != 0:
        pytest.skip("cgroups are root's")
    node = Cgroup(f"{TREE}/a1/n-0")
    try:
        node.create()
    except OSError as error:
        pytest.skip(f"this machine does not let us make cgroups: {error}")
    yield node
    sweep(TREE)


def spin(node: Cgroup, program: str = "while True: pass") -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", program])
    node.add(process.pid)
    return process


def test_frozen_processes_stop_and_can_be_killed(group: Cgroup) -> None:
    process = spin(group)
    assert group.pids() == [process.pid]
    group.freeze()
    assert group.frozen()
    used = group.cpu_seconds()
    time.sleep(0.1)
    assert group.cpu_seconds() == used, "a frozen process uses no processor"
    group.thaw()
    assert not group.frozen()
    group.freeze()
    group.kill()
    assert process.wait(waiting.bound()) == -9
    assert group.pids() == []


WANDER = """
import os, time
cpus = sorted(os.sched_getaffinity(0))
while True:
    for cpu in cpus:
        os.sched_setaffinity(0, {cpu})
        end = time.monotonic() + 0.003
        while time.monotonic() < end: pass
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it changes its processor, and there is one")
def test_a_process_below_its_quota_that_changes_its_processor_does_not_stand(group: Cgroup) -> None:
    directory = (machine_layout().root("cpu") or Path("/")) / TREE
    if not any((directory / name).exists() for name in ("cpu.cfs_burst_us", "cpu.max.burst")):
        pytest.skip("the kernel has no bursts (Linux 5.14)")
    group.limit(cpus=1.1, memory=2**28, burst=True)
    process = spin(group, WANDER)
    waiting.until(lambda: group.cpu_seconds() >= 1, "a second of processor time")
    stood = group.throttled()
    group.kill()
    process.wait(waiting.bound())
    assert stood < 0.005, "25 ms in a second without bursts"


def test_limits_reach_the_kernel(group: Cgroup) -> None:
    host = Cgroup(f"{TREE}/a1")
    host.limit(cpus=1, memory=2**29)
    group.limit(cpus=4, memory=2**28)  # more than its host has: the host's limit applies
    group.limit(cpus=0.2, memory=2**28)
    group.weight(1)
    process = spin(group)
    waiting.until(group.throttled, "an endless loop to need more than a fifth of a processor")
    group.kill()
    process.wait(waiting.bound())


def test_a_fork_bomb_stays_within_its_limit(group: Cgroup) -> None:
    if machine_layout().root("pids") is None:
        pytest.skip("this machine has no pids controller")
    group.limit(cpus=1, memory=2**28, tasks=20)
    bomb = "for i in $(seq 60); do sleep 60 2>/dev/null & done"
    process = subprocess.Popen(["/bin/sh", "-c", f"read line; {bomb}"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    group.add(process.pid)
    output = process.communicate(b"go\n", timeout=waiting.bound())[1]
    assert b"fork" in output, "the twentieth process is refused"
    assert 10 < len(group.pids()) <= 20


def test_sweep_removes_one_instance_only(group: Cgroup) -> None:
    other = Cgroup(f"{TREE}2/a1")
    other.create()
    try:
        process = spin(group)
        assert [child.name for child in Cgroup(TREE).children()] == [f"{TREE}/a1"]
        sweep(TREE)
        assert process.wait(waiting.bound()) == -9
        assert not Cgroup(TREE).exists() and not group.exists()
        assert other.exists()
        sweep(TREE)
    finally:
        sweep(f"{TREE}2")


def test_adding_an_ended_process_is_refused(group: Cgroup) -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    with pytest.raises(Failed, match="was not put into"):
        group.add(process.pid)
