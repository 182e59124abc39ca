"""A large memory that processes share and hardly write: it is sent while the node runs, not while it is frozen."""

from __future__ import annotations

import shutil
import time

import pytest
from engine_node import EngineNode, Mode
from script_node import begin, end

from wherry.node.container.pager import PageReceiver
from wherry.node.container.progress_bounds import StallTimeout

pytestmark = [
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the programs"),
    pytest.mark.parametrize("nodes", ["container"], indirect=True),
]
MEBI = 1 << 20
SIZE = 256 * MEBI
SENT_WHILE_IT_STANDS = 24 * MEBI
PROGRAM = f"""
import hashlib, mmap, os, time
def block(number):
    return hashlib.sha256(b"%d" % number).digest() * ({MEBI} // 32)
kinds = {{
    "anonymous": lambda: mmap.mmap(-1, {SIZE}),
    "memfd": lambda: mmap.mmap(fd, {SIZE}),
    "file": lambda: mmap.mmap(os.open("/dev/shm/idle", os.O_RDWR), {SIZE}),
}}
os.truncate(os.open("/dev/shm/idle", os.O_RDWR | os.O_CREAT), {SIZE})
fd = os.memfd_create("idle")
os.ftruncate(fd, {SIZE})
shared = kinds[open("/tmp/kind").read()]()
for number in range({SIZE // MEBI}):
    shared[number * {MEBI} : (number + 1) * {MEBI}] = block(number)
open("/tmp/ready", "w")
count = 0
while not os.path.exists("/tmp/go"):
    count += 1
    shared[4096 * (count % 32)] = count % 256
    time.sleep(0.005)
def is_right(number):
    return shared[number * {MEBI} : (number + 1) * {MEBI}] == block(number)
wrong = [number for number in range(1, {SIZE // MEBI}) if not is_right(number)]
open("/tmp/result.new", "w").write(f"{{count > 0}} {{wrong}}")
os.rename("/tmp/result.new", "/tmp/result")
"""


@pytest.mark.parametrize("kind", ["anonymous", "memfd", "file"])
def test_idle_shared_memory_is_sent_while_the_node_runs(node: EngineNode, kind: str, sent: list[int]) -> None:
    (node.directory(node.node_under_test.source) / "kind").write_text(kind)
    begin(node, PROGRAM)
    for host in ("a2", "b1"):
        node.aim(host)
        assert node.attempt(Mode(rounds=2)) == ""
    end(node, sent)
    assert len(sent) == 2 and max(sent) < SENT_WHILE_IT_STANDS


def test_the_receiver_waits_to_be_asked_for_it(node: EngineNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a busy machine takes from the restore to the question."""
    fill_objects = PageReceiver.fill_objects

    def late(receiver: PageReceiver, bound: StallTimeout) -> None:
        time.sleep(1.5)
        fill_objects(receiver, bound)

    monkeypatch.setattr(PageReceiver, "fill_objects", late)
    node.begin("busy_anon_shared")
    assert node.attempt(Mode(rounds=1)) == ""
    node.await_laps("busy_anon_shared")
