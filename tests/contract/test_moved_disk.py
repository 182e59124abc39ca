"""A node whose /tmp is on its host's disk: it moves with it, in whichever mode, and leaves nothing at its source."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from engine_node import STEPS, EngineNode, Mode
from script_node import begin, end, go_round
from test_moved_files import IN_ALL_MODES, MODES, PROGRAM

import waiting
from wherry.base.errors import Code, Failed, Refused
from wherry.node.container.disk import Disk, lacking
from wherry.node.container.mover import ContainerMover
from wherry.node.protocol import Placement

DISK = 1 << 30
LARGE = 192 << 20
SETTLED = 24 << 20
"""Bytes that are sent at most while a node is frozen whose large file hardly changes."""
pytestmark = [
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the programs"),
    pytest.mark.skipif(bool(lacking()), reason=f"this machine {lacking()}"),
    pytest.mark.parametrize("node", [DISK], indirect=True, ids=["1GiB"]),
]
IN_A_CONTAINER = pytest.mark.parametrize("nodes", ["container"], indirect=True)
MAPPED = """
import fcntl, mmap, os, random, socket, time

chance, pages, laps, wrong = random.Random(7), {}, 0, []
file = os.open("/tmp/mapped", os.O_RDWR | os.O_CREAT)
os.truncate(file, 64 << 20)
mapped = mmap.mmap(file, 64 << 20)
removed = open("/tmp/removed", "w+b")
removed.write(b"removed" * 1000)
removed.flush()
os.unlink("/tmp/removed")
listener = socket.socket(socket.AF_UNIX)
listener.bind("/tmp/socket")
listener.listen()
locked = open("/tmp/locked", "w")
fcntl.lockf(locked, fcntl.LOCK_EX)
os.setxattr("/tmp/locked", "user.one", b"value")
while not os.path.exists("/tmp/go"):
    page = chance.randrange(64 << 8)
    pages[page] = chance.randrange(1, 256)
    mapped[page * 4096 + 7] = pages[page]
    laps += 1
    if laps == 300:
        open("/tmp/ready", "w")
    if laps > 300:
        time.sleep(0.001)
wrong += [f"page {page}" for page, byte in pages.items() if mapped[page * 4096 + 7] != byte]
again = os.open("/tmp/mapped", os.O_RDONLY)
wrong += [f"page {page} by name" for page, byte in pages.items()
          if os.pread(again, 1, page * 4096 + 7) != bytes([byte])]
removed.seek(0)
if removed.read() != b"removed" * 1000:
    wrong.append("the removed file")
if os.getxattr("/tmp/locked", "user.one") != b"value":
    wrong.append("the attribute")
if os.fork() == 0:
    try:
        fcntl.lockf(open("/tmp/locked", "w"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os._exit(0)
    os._exit(1)
if os.wait()[1]:
    wrong.append("the lock")
socket.socket(socket.AF_UNIX).connect("/tmp/socket")
open("/tmp/result.new", "w").write(f"{laps > 400} {wrong}")
os.rename("/tmp/result.new", "/tmp/result")
"""


@IN_ALL_MODES
def test_files_are_what_their_program_made_them(node: EngineNode, mode: Mode, sent: list[int]) -> None:
    begin(node, PROGRAM)
    go_round(node, mode)
    assert images(node) == [host_file(node)]
    end(node, sent)


@IN_ALL_MODES
def test_mappings_locks_and_sockets_there_go_on(node: EngineNode, mode: Mode, sent: list[int]) -> None:
    large = node.directory(node.node_under_test.source) / "large"
    large.write_bytes(os.urandom(LARGE))
    begin(node, MAPPED)
    go_round(node, mode)
    end(node, sent)
    if mode == MODES["rounds"][1]:
        assert max(sent) < SETTLED, sent


@IN_A_CONTAINER
@pytest.mark.parametrize("step", STEPS)
def test_a_move_that_is_taken_back_leaves_the_disk_at_its_source(node: EngineNode, step: str, sent: list[int]) -> None:
    begin(node, MAPPED)
    node.aim("b1")

    def fail(now: str, _: ContainerMover) -> None:
        if now == step:
            raise Failed(Code.MOVE_FAILED, "a fault")

    assert "a fault" in node.attempt(Mode(rounds=1), fail)
    assert images(node) == [host_file(node)]
    end(node, sent)


@IN_A_CONTAINER
def test_it_goes_with_its_node(node: EngineNode) -> None:
    place, under_test = node.node_under_test.source, node.node_under_test
    disk = disk_of(node, place)
    device = subprocess.check_output(
        ["losetup", "--noheadings", "--output", "NAME", "--associated", disk.image], text=True
    )
    assert device.strip()
    under_test.driver.stop(place)
    assert images(node) == []
    assert not subprocess.check_output(["losetup", "--associated", disk.image], text=True)


@IN_A_CONTAINER
def test_disks_that_a_crash_left_are_removed_when_one_is_made(node: EngineNode) -> None:
    (host_file(node).parent / "gone-0@a1").write_bytes(b"left")
    node.aim("b1")
    assert node.attempt(Mode(rounds=1)) == ""
    assert images(node) == [host_file(node)]


@IN_A_CONTAINER
def test_a_host_without_room_for_it_is_refused(node: EngineNode) -> None:
    place = node.place("b1")
    wanted = place.model_copy(update={"node": place.node.model_copy(update={"disk": 1 << 50})})
    obstacle = node.node_under_test.driver.move_obstacle(node.node_under_test.source, wanted)
    assert obstacle.startswith("this machine has room for ") and "and 1024.0 TiB are wanted for /tmp" in obstacle
    with pytest.raises(Failed, match="the disk for the node's /tmp cannot be made: .*fallocate"):
        disk_of(node, wanted).make()


@IN_A_CONTAINER
def test_a_removed_file_that_is_too_large_is_refused_by_name(node: EngineNode) -> None:
    text = f"""
import os, time
file = open("/tmp/scratch", "wb")
os.posix_fallocate(file.fileno(), 0, {node.node_under_test.source.node.memory + (1 << 20)})
os.unlink("/tmp/scratch")
open("/tmp/ready", "w")
time.sleep(600)
"""
    begin(node, text)
    place, driver = node.node_under_test.source, node.node_under_test.driver
    with pytest.raises(Refused, match=r"has /tmp/scratch open, which was removed and takes 385\.0 MiB"):
        driver.require_movable(place)
    found = [hindrance for hindrance in driver.inspect(place) if hindrance.prevents]
    assert ["/tmp/scratch open, which was removed" in hindrance.text for hindrance in found] == [True]


def disk_of(node: EngineNode, place: Placement) -> Disk:
    disk = node._hosts.of(place.host).layout(place).disk
    assert disk
    return disk


def host_file(node: EngineNode) -> Path:
    """The file of the disk where the node is."""
    return disk_of(node, node.node_under_test.source).image


def devices(disk: Disk) -> list[str]:
    """The loop devices of a disk."""
    words = ["losetup", "--noheadings", "--output", "NAME", "--associated", str(disk.image)]
    return subprocess.check_output(words, text=True, timeout=waiting.bound()).split()


def images(node: EngineNode) -> list[Path]:
    """The files of all disks."""
    return sorted(host_file(node).parent.iterdir())
