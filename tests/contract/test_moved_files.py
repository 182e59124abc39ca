"""A node's own files move with it, whatever its program does to them until the freeze, and in whichever mode."""

from __future__ import annotations

import os
import shutil

import pytest
from engine_node import STEPS, EngineNode, Mode
from script_node import begin, end, go_round

from wherry.model.migration_parameters import MigrationParameters
from wherry.node.container.mover import ContainerMover
from wherry.node.protocol import Placement

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the programs")
MODES = {
    "rounds": ("container", Mode(rounds=2)),
    "stop": ("container", Mode(rounds=0)),
    "slow": ("container", Mode(rounds=2, rate=400e6)),
    "post-copy": ("container", Mode(rounds=1, parameters=MigrationParameters(mode="post-copy"))),
    "unpaged": ("unpaged", Mode()),
}
IN_ALL_MODES = pytest.mark.parametrize(("nodes", "mode"), list(MODES.values()), ids=list(MODES), indirect=["nodes"])
LARGE = 128 << 20
SETTLED = 24 << 20
"""Bytes that are sent at most while a node is frozen whose large file hardly changes."""
PROGRAM = """
import hashlib, mmap, os, random, shutil, stat, time

tops, chance, number, known = ["/dev/shm/files", "/tmp/files", "/run/lock/files"], random.Random(5), 0, {}
for top in tops:
    os.mkdir(top)
file = os.open("/dev/shm/mapped", os.O_RDWR | os.O_CREAT)
os.truncate(file, 64 << 20)
mapped, pages, laps = mmap.mmap(file, 64 << 20), {}, 0


def write_mapped():
    page = chance.randrange(64 << 8)
    pages[page] = chance.randrange(1, 256)
    mapped[page * 4096 + 7] = pages[page]


def fresh():
    global number
    number += 1
    return f"{chance.choice(tops)}/f{number}"


def make():
    path, data = fresh(), chance.randbytes(chance.choice([0, 10, 5000, 200000]))
    with open(path, "wb") as made:
        made.write(data)
    known[path] = [data, 0o640]
    os.chmod(path, 0o640)


def chosen():
    return chance.choice(sorted(known))


def change():
    path = chosen()
    data = known[path][0]
    at, more = chance.randrange(len(data) + 1), chance.randbytes(3000)
    with open(path, "r+b") as changed:
        changed.seek(at)
        changed.write(more)
    known[path][0] = data[:at] + more + data[at + 3000 :]


def shorten():
    path = chosen()
    size = chance.randrange(len(known[path][0]) + 1)
    os.truncate(path, size)
    known[path][0] = known[path][0][:size]


def rename():
    path, other = chosen(), fresh()
    try:
        os.rename(path, other)
    except OSError:  # /tmp and /dev/shm are other mounts
        return
    known[other] = known.pop(path)


def remove():
    path = chosen()
    del known[path]
    os.unlink(path)


def mode():
    path = chosen()
    known[path][1] = chance.choice([0o600, 0o755, 0o444])
    os.chmod(path, known[path][1])


acts = [make, make, change, shorten, rename, remove, mode]
make()
while not os.path.exists("/tmp/go"):
    write_mapped()
    if known:
        chance.choice(acts if len(known) < 300 else [remove])()
    else:
        make()
    laps += 1
    if laps == 300:
        open("/tmp/ready", "w")
    if laps > 300:
        time.sleep(0.002)

wrong = [path for path, (data, mode) in known.items()
         if not os.path.exists(path) or open(path, "rb").read() != data or os.stat(path).st_mode & 0o777 != mode]
wrong += [f"{top}/{name}" for top in tops for name in os.listdir(top) if f"{top}/{name}" not in known]
wrong += [f"page {page}" for page, byte in pages.items() if mapped[page * 4096 + 7] != byte]
wrong += [f"page {page} of the file" for page, byte in pages.items()
          if os.pread(file, 1, page * 4096 + 7) != bytes([byte])]
open("/tmp/result.new", "w").write(f"{laps > 400} {wrong}")
os.rename("/tmp/result.new", "/tmp/result")
"""


@IN_ALL_MODES
def test_files_are_what_their_program_made_them(node: EngineNode, mode: Mode, sent: list[int]) -> None:
    begin(node, PROGRAM)
    go_round(node, mode)
    end(node, sent)
    if mode == MODES["rounds"][1]:
        assert max(sent) < SETTLED, sent


@pytest.mark.parametrize("nodes", ["container"], indirect=True)
def test_files_may_take_all_their_room_at_the_destination_too_and_no_more(node: EngineNode) -> None:
    """They have twice as much while they arrive, as rounds may see both a removed file and its successor."""
    node.begin("busy_dev_shm")
    before = node.node_under_test.source
    room = room_at(node, before)
    node.aim("a2")
    seen = dict[str, int | None]()
    assert node.attempt(Mode(rounds=2), lambda step, _: seen.update({step: room_at(node, node.place("a2"))})) == ""
    assert room and seen == {**dict.fromkeys(STEPS[:3], 2 * room), **dict.fromkeys(STEPS[3:], room)}
    node.await_laps("busy_dev_shm")


def room_at(node: EngineNode, place: Placement) -> int | None:
    """Bytes that the node's files may take there."""
    return node._hosts.of(place.host).layout(place).space()[1]


@pytest.mark.parametrize("nodes", ["container", "unpaged"], indirect=True)
def test_files_count_as_memory_of_the_host_where_they_arrive(node: EngineNode) -> None:
    large = node.directory(node.node_under_test.source) / "large"
    large.write_bytes(os.urandom(LARGE))
    node.aim("a2")
    host, seen = node._hosts.of("a2"), dict[str, int]()

    def note(step: str, _: ContainerMover) -> None:
        seen[step] = host.pager_group(node.place("a2")).memory_used()

    assert node.attempt(Mode(rounds=1), note) == ""
    assert seen["prepare"] < LARGE <= seen["transfer"]
