"""wherry-pager send: the kernel's writes into pinned memory, which no protection reports, arrive as well; and memory
that processes share since a fork stays shared."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_pager_send import NATIVE, Sender, differing, freeze, node, start_in  # noqa: F401

import waiting
from names import own_name
from sanitized import sanitized
from wherry.base.paths import native_program
from wherry.fabric.cgroup import Cgroup

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and ptrace are root's"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the sender's subject"),
    pytest.mark.skipif(not ctypes.util.find_library("isal"), reason="there is no ISA-L for checksums"),
]
BLKIO = Path("/sys/fs/cgroup/blkio")
READS = 300
"""Of 4 KiB a second: one takes as long as on storage behind a network."""
SENDINGS = 5
MEBI = 2**20
FORKED = f"""
import os, sys, time
table = bytearray(os.urandom({MEBI}) * 64)
for _ in range(3):
    if not os.fork():
        while True:
            time.sleep(60)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module", params=["as built", pytest.param("sanitized", marks=pytest.mark.thorough)])
def program(request: pytest.FixtureRequest) -> Path:
    if request.param == "sanitized":
        return sanitized("wherry-pager") / "bin" / "wherry-pager"
    return native_program("wherry-pager")


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("pins") / "pinned"
    words = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run([*words, str(NATIVE / "tests" / "pinned_memory.c"), "-o", str(found)], check=True, timeout=120)
    return found


@pytest.fixture
def slow_reads(tmp_path: Path) -> Iterator[Path]:
    """A cgroup of which the disk that has the test's directory serves few reads a second."""
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    if not Path("/sys/dev/block", number).exists() or not (BLKIO / "blkio.throttle.read_iops_device").exists():
        pytest.skip("reads cannot be slowed: no disk below the test's directory, or no blkio controller of cgroup v1")
    group = BLKIO / f"wherry-{own_name('pins')}"
    group.mkdir()
    try:
        (group / "blkio.throttle.read_iops_device").write_text(f"{number} {READS}")
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (BLKIO / "cgroup.procs").write_text(pid)
        group.rmdir()


def send_last(sender: Sender) -> None:
    assert sender.ask("last")[0] == "hidden"
    assert sender.line()[0] == "last"


def test_what_a_direct_read_brings_arrives(
    program: Path,
    pinned: Path,
    node: Cgroup,  # noqa: F811
    slow_reads: Path,
    tmp_path: Path,
) -> None:
    reader = start_in(node, [str(pinned), "direct", str(tmp_path / "data")], stdout=subprocess.PIPE)
    assert reader.stdout and reader.stdout.readline() == "ready\n"
    (slow_reads / "cgroup.procs").write_text(str(reader.pid))
    sender = Sender(program, node, tmp_path)
    assert sender.line()[0] == "ready"
    for _ in range(SENDINGS):
        for _ in range(4):
            assert sender.ask("round")[0] == "round"
        freeze(node)
        send_last(sender)
        wrong, count = differing(node, sender.receiver)
        assert not wrong, (len(wrong), count, wrong[:5])
        node.thaw()
    sender.end()
    reader.kill()
    reader.wait()


def test_what_another_thread_writes_with_a_system_call_arrives(
    program: Path,
    pinned: Path,
    node: Cgroup,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The page is protected and sent while the call has it pinned; then the call writes to it."""
    writer = start_in(node, [str(pinned), "writev"], stdout=subprocess.PIPE)
    assert writer.stdout and writer.stdout.readline() == "ready\n"
    sender = Sender(program, node, tmp_path)
    assert sender.line()[0] == "ready"
    for _ in range(2):
        assert sender.ask("round")[0] == "round"
    writer.send_signal(signal.SIGUSR1)
    assert writer.stdout.readline() == "ready\n"
    freeze(node)
    send_last(sender)
    wrong, _ = differing(node, sender.receiver)
    assert not wrong
    sender.end()
    node.thaw()
    writer.kill()
    writer.wait()


def test_forked_processes_go_on_sharing_their_memory(program: Path, node: Cgroup, tmp_path: Path) -> None:  # noqa: F811
    parent = start_in(node, [sys.executable, "-c", FORKED], stdout=subprocess.PIPE)
    assert parent.stdout and parent.stdout.readline() == "ready\n"
    waiting.until(lambda: len(node.pids()) == 4, "four processes")
    before = node.memory_used()
    assert before > 64 * MEBI
    sender = Sender(program, node, tmp_path)
    assert sender.line()[0] == "ready"
    assert sender.ask("round")[0] == "round"
    freeze(node)
    send_last(sender)
    wrong, count = differing(node, sender.receiver)
    assert not wrong and count > 4 * 64 * 256
    assert node.memory_used() < before + 16 * MEBI
    sender.end()
    node.kill()
    node.thaw()
    parent.wait()
