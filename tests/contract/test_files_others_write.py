"""Files of a directory that nodes share, while one of the nodes moves: others write, remove and replace them."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_node import SharedNode, shared_directory

import waiting
from wherry.base.errors import WherryError
from wherry.fabric.protocol import Fabric
from wherry.node.protocol import NodeDriver

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="container nodes need root"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the node's programs"),
    pytest.mark.parametrize("nodes", ["container"], indirect=True, scope="module"),
]
FOLLOWER = """
import mmap, os, sys, time
directory, access = sys.argv[1:]
file = os.open(directory + "/log", os.O_RDONLY if access == "read" else os.O_RDWR)
mapped = mmap.mmap(file, 8, prot=mmap.PROT_READ) if access == "map" else None
text = b""
open(directory + "/ready", "w")
while not text.endswith(b"end\\n"):
    text += os.read(file, 1 << 16)
    time.sleep(0.001)
if mapped:
    assert mapped[:8] == text[:8]
records = text.split(b"\\n")[:-2]
wrong = [number for number, record in enumerate(records) if record != b"%07d" % number]
with open(directory + "/result.new", "w") as result:
    result.write(f"{len(records)} {wrong[:5]}")
os.rename(directory + "/result.new", directory + "/result")
"""
SHARER = """
import ctypes, os, sys, time
directory, access = sys.argv[1:]
file = os.open(directory + "/common", os.O_RDWR)
words = None
if "map" in access:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    shared = libc.mmap(None, ctypes.c_size_t(4096), 3, 1, file, ctypes.c_long(0))
    words = (ctypes.c_char * 4096).from_address(shared)
if access == "only mapped":
    os.close(file)
open(directory + "/ready", "w")
count = 0
while not os.path.exists(directory + "/go"):
    count += 1
    if words:
        words[:8] = b"%08d" % count
    else:
        os.pwrite(file, b"%08d" % count, 0)
    time.sleep(0.001)
theirs = words[8:16] if words else os.pread(file, 8, 8)
with open(directory + "/result.new", "w") as result:
    result.write(f"{count} {theirs.decode()}")
os.rename(directory + "/result.new", directory + "/result")
"""


class Sharing(SharedNode):
    """A node whose program writes its result into the directory."""

    def begin(self, program: str, access: str) -> None:
        here = self.directory
        (here / "program.py").write_text(program)
        words = f"setsid /usr/bin/python3 {here}/program.py {here} '{access}' </dev/null >{here}/said 2>&1 &"
        assert self.run_in_node(words) == 0
        waiting.until((here / "ready").exists, (here / "said").read_text)

    def result(self) -> str:
        here = self.directory
        waiting.until((here / "result").exists, (here / "said").read_text)
        return (here / "result").read_text()


@pytest.fixture
def sharing(nodes: tuple[NodeDriver, Fabric]) -> Iterator[Sharing]:
    with shared_directory(nodes) as (node_under_test, directory):
        yield Sharing(node_under_test, directory)


@contextlib.contextmanager
def growing(log: Path) -> Iterator[list[int]]:
    """A file to which somebody appends numbered records, as fast as it goes; how many they are in the end."""
    ended, count = threading.Event(), [0]

    def write() -> None:
        with log.open("ab", buffering=0) as file:
            while not ended.wait(0.0005):
                file.write(b"%07d\n" % count[0])
                count[0] += 1

    log.write_bytes(b"")
    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield count
    finally:
        ended.set()
        writer.join()
        with log.open("ab") as file:
            file.write(b"end\n")


@pytest.mark.parametrize("access", ["read", "write", "map"])
def test_a_file_that_grows_meanwhile_is_no_obstacle(sharing: Sharing, access: str) -> None:
    with growing(sharing.directory / "log") as count:
        waiting.until(lambda: count[0] > 4)
        sharing.begin(FOLLOWER, access)
        for _ in range(3):
            sharing.move()
    assert sharing.result() == f"{count[0]} []"


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("access", ["open", "open and mapped"])
def test_a_file_that_is_removed_stays_one_file(sharing: Sharing, access: str, how: str) -> None:
    common = sharing.directory / "common"
    common.write_bytes(bytes(4096))
    with common.open("r+b", buffering=0) as ours:
        sharing.begin(SHARER, access)
        if how == "removed":
            common.unlink()
        else:
            (sharing.directory / "new").write_bytes(b"another")
            (sharing.directory / "new").rename(common)
        for number in range(3):
            sharing.move()
            before = os.pread(ours.fileno(), 8, 0)
            waiting.until(lambda before=before: os.pread(ours.fileno(), 8, 0) != before, "the node's writes")
            os.pwrite(ours.fileno(), b"%08d" % number, 8)
        (sharing.directory / "go").touch()
        count, theirs = sharing.result().split()
        assert int(count) > 0 and theirs == "00000002"


def test_a_removed_file_that_is_only_mapped_is_refused_by_name(sharing: Sharing) -> None:
    common = sharing.directory / "common"
    common.write_bytes(bytes(4096))
    sharing.begin(SHARER, "only mapped")
    common.unlink()
    with pytest.raises(WherryError, match=str(common)):
        sharing.move()
    (sharing.directory / "go").touch()
    assert int(sharing.result().split()[0]) > 0


def test_a_program_that_is_built_anew_while_it_runs_moves(sharing: Sharing) -> None:
    """Its own file is removed, and mapped privately: a copy of it is as good."""
    program, here = sharing.directory / "sleeper", sharing.directory
    shutil.copy("/bin/sleep", program)
    assert sharing.run_in_node(f"setsid {program} 600 </dev/null >{here}/said 2>&1 & echo $! >{here}/pid") == 0
    assert sharing.run_in_node(f"until readlink /proc/$(cat {here}/pid)/exe | grep -q sleeper; do :; done") == 0
    (here / "new").write_bytes(program.read_bytes())
    (here / "new").rename(program)
    for _ in range(2):
        sharing.move()
        assert sharing.run_in_node(f"kill -0 $(cat {here}/pid)") == 0
