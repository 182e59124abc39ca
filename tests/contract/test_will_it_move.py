"""Findings about a container before any move: objects that prevent it are refused, objects that prolong it have sizes.
The objects are those of tests/objects."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading

import pytest
from node_objects import Objects

import waiting
from wherry.base.errors import Refused
from wherry.fabric.cgroup import Cgroup
from wherry.node.container import amx

pytestmark = [
    pytest.mark.parametrize("nodes", ["container"], indirect=True),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the programs that hold the objects"),
]
REFUSED = {
    "vsock": "family AF_VSOCK",
    "alg": "family AF_ALG",
    "ping": "protocol ICMP",
    "mptcp": "protocol MPTCP",
    "secret": "memfd_secret",
    "secret_mapped": "memfd_secret",
    "netlink_unread": "netlink socket with unread messages",
    "seccomp_listener": "kind seccomp",
    "unix_outside": "outside the node",
    "aio": "io_setup",
}
CARRIED = ("netlink_group", "droppable", "namespace")
MEBI = 2**20
PROGRAM = f"""
import ctypes, fcntl, mmap, os, time
libc = ctypes.CDLL(None)
shared = mmap.mmap(-1, {32 * MEBI})
shared.write(b"s" * {32 * MEBI})
sealed = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
os.write(sealed, b"s" * {8 * MEBI})
fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
mapped = mmap.mmap(sealed, {8 * MEBI}, mmap.MAP_SHARED, mmap.PROT_READ)
unmapped = os.memfd_create("unmapped")
os.write(unmapped, b"u" * {3 * MEBI})
locked = mmap.mmap(-1, {4 * MEBI}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
locked.write(b"l" * {4 * MEBI})
assert not libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(locked))), {4 * MEBI})
open("/tmp/data", "wb").write(b"d" * {12 * MEBI})
open("/tmp/ready", "w")
time.sleep(600)
"""


def test_what_would_prevent_a_move_is_told_and_refused(objects: Objects) -> None:
    under_test = objects.node_under_test
    group, driver = Cgroup(under_test.source.cgroup), under_test.driver
    before, seen = group.pids(), list[str]()
    outside = objects.directory(under_test.source) / "outside"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(outside))
        listener.listen(8)
        accepted = list[socket.socket]()
        threading.Thread(target=lambda: accepted.append(listener.accept()[0]), daemon=True).start()
        for case, expected in REFUSED.items():
            if not objects.make(case, optional=tuple(REFUSED)):
                continue
            seen.append(case)
            told = [found.text for found in driver.inspect(under_test.source) if found.prevents]
            assert len(told) == 1 and expected in told[0], (case, told)
            with pytest.raises(Refused, match="cannot be moved"):
                under_test.mover().prepare()
            ended = set(group.pids()) - set(before)
            for pid in ended:
                os.kill(pid, signal.SIGKILL)
            waiting.until(lambda ended=ended: not set(group.pids()) & ended, "their end")
    print("refused on this kernel:", *seen)
    assert {"unix_outside", "netlink_unread", "seccomp_listener"} <= set(seen), seen
    assert not [found for found in driver.inspect(under_test.source) if found.prevents]


STATES = {
    "reserving": "of address space",
    "stopped": "is stopped",
    "leaderless": "its main thread has ended",
    "orphaned": "a session whose leader has ended",
}
IN_A_STATE = """
import ctypes, os, signal, sys, threading, time
state, libc = sys.argv[1], ctypes.CDLL(None)
libc.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: the children of its children become its own
def sleep():
    while True:
        time.sleep(60)
if not (pid := os.fork()):
    if state == "leaderless":
        threading.Thread(target=sleep).start()
        libc.syscall(60, 0)  # exit, of this thread alone
    if state == "reserving":  # as a sanitizer does for its shadow: PROT_NONE, MAP_NORESERVE
        libc.mmap(None, ctypes.c_size_t(2 << 40), 0, 0x4022, -1, ctypes.c_long(0))
    if state == "orphaned":
        os.setsid()
        if os.fork():
            os._exit(0)
    sleep()
if state == "orphaned":
    os.waitpid(pid, 0)
if state == "stopped":
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
open("/tmp/ready", "w")
sleep()
"""


@pytest.mark.parametrize("what", STATES)
def test_states_of_processes_that_prevent_a_move_are_told_and_refused(objects: Objects, what: str) -> None:
    """Rather than found out by CRIU while the node is frozen."""
    under_test = objects.node_under_test
    directory = objects.directory(under_test.source)
    (directory / "state.py").write_text(IN_A_STATE)
    objects.run("/bin/sh", "-c", f"setsid /usr/bin/python3 /tmp/state.py {what} > /tmp/said 2>&1 &")
    waiting.until((directory / "ready").exists, (directory / "said").read_text)

    def told() -> list[str]:
        return [found.text for found in under_test.driver.inspect(under_test.source) if found.prevents]

    waiting.until(told, what)  # a thread takes a moment to end
    assert len(told()) == 1 and STATES[what] in told()[0] and "python3" in told()[0], told()
    with pytest.raises(Refused, match="cannot be moved") as refused:
        under_test.mover().prepare()
    assert STATES[what] in refused.value.why


@pytest.mark.skipif(not amx.supported(), reason="the kernel has no permissions for parts of the processor's state")
def test_programs_that_may_use_amx_are_told_and_refused(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AVX in its place, which every process of every machine may use. Programs that ask for it after the
    move began are refused before the freeze, too."""
    under_test = objects.node_under_test
    directory = objects.directory(under_test.source)
    objects.run("/bin/sh", "-c", '/usr/bin/python3 -c \'import time; open("/tmp/ready", "w"); time.sleep(600)\' &')
    waiting.until((directory / "ready").exists)
    before = Cgroup(under_test.source.cgroup).pids()

    def told() -> list[str]:
        return [found.text for found in under_test.driver.inspect(under_test.source) if found.prevents]

    mover = under_test.mover()
    prepare, freeze, *_ = under_test.steps(mover)
    prepare()
    mover.round(1)
    assert not told()
    monkeypatch.setattr(amx, "FEATURE", 2)
    assert len(told()) == len(before) and all("may use AMX" in text for text in told()), told()
    assert [text for text in told() if "(python3)" in text and "ONEDNN_MAX_CPU_ISA" in text]
    with pytest.raises(Refused, match="cannot be moved") as refused:
        freeze()
    assert "may use AMX" in refused.value.why and not Cgroup(under_test.source.cgroup).frozen()
    under_test.roll_back(mover)
    with pytest.raises(Refused, match="cannot be moved"):
        under_test.mover().prepare()
    with pytest.raises(Refused, match="cannot be moved"):
        under_test.driver.require_movable(under_test.source)
    monkeypatch.undo()
    assert Cgroup(under_test.source.cgroup).pids() == before
    objects.move()


def test_every_object_that_prevents_a_move_is_told(objects: Objects) -> None:
    objects.make("eventfd_semaphore", "netlink_unread")
    told = [found.text for found in objects.node_under_test.driver.inspect(objects.node_under_test.source)]
    assert sum("semaphore" in text for text in told) == 1 and sum("netlink" in text for text in told) == 1, told


@pytest.mark.parametrize("case", CARRIED)
def test_what_is_not_refused_moves(objects: Objects, case: str) -> None:
    if not objects.make(case, optional=CARRIED):
        pytest.skip("the kernel lacks it")
    assert not [
        found for found in objects.node_under_test.driver.inspect(objects.node_under_test.source) if found.prevents
    ]
    objects.move()
    assert objects.check(case) == {}


def test_what_would_prolong_a_move_is_told_with_its_size(objects: Objects) -> None:
    under_test = objects.node_under_test
    directory = objects.directory(under_test.source)
    (directory / "holder.py").write_text(PROGRAM)
    objects.run("/bin/sh", "-c", "/usr/bin/python3 /tmp/holder.py > /tmp/said 2>&1 &")
    waiting.until((directory / "ready").exists, (directory / "said").read_text)
    found = {one.text: one.bytes for one in under_test.driver.inspect(under_test.source) if one.bytes}
    (shared,) = [size for text, size in found.items() if text.endswith("(python3) has shared memory")]
    (unmapped,) = [size for text, size in found.items() if "nobody has mapped" in text]
    (locked,) = [size for text, size in found.items() if "(python3) has locked memory" in text]
    assert shared == 8 * MEBI and unmapped == 3 * MEBI and locked == 4 * MEBI, found
    (files,) = [size for text, size in found.items() if text.startswith("files in its own directories")]
    assert 12 * MEBI <= files < 18 * MEBI, found
