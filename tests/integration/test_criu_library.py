"""The library in CRIU (native/preload/criu.c): pages that a dump does not see, and a restore that waits at a gate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import waiting
from wherry.base.paths import native_library
from wherry.node.container import pager

LIBRARY = "libwherry-criu.so"
SCAN = """
import ctypes, fcntl, json, mmap, os, struct, sys
PAGE, PRESENT, GUARD = 4096, 8, 256
memory = mmap.mmap(-1, 64 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for page in range(64):
    memory[page * PAGE] = 1
request = json.loads(sys.argv[1])
lines = "".join(
    f"{os.getpid() + other} {start + first * PAGE:x} {start + end * PAGE:x}\\n"
    for other, first, end in request["hidden"]
)
crc = 0xFFFFFFFF
for byte in lines.encode():
    crc ^= byte
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
crc ^= 0xFFFFFFFF ^ request.get("damage", 0)
if "WHERRY_CRIU_SKIP" in os.environ and not request.get("missing"):
    with open(os.environ["WHERRY_CRIU_SKIP"], "w") as file:
        file.write(f"hidden {len(request['hidden']) + request.get('more', 0)} {crc:x}\\n{lines}")
room = request.get("room", 64)
regions = ctypes.create_string_buffer(24 * room)
first, end = request.get("range", (0, 64))
mask = (GUARD, 0) if request.get("guard") else (0, PRESENT)
scan = bytearray(struct.pack("12Q", 96, 0, start + first * PAGE, start + end * PAGE, 0, ctypes.addressof(regions), room,
                             0, 0, *mask, PRESENT | GUARD))
with open("/proc/self/pagemap", "rb") as pagemap:
    found = fcntl.ioctl(pagemap, 0xC0606610, scan)
pages = [struct.unpack_from("3Q", regions, 24 * number)[:2] for number in range(found)]
walked = struct.unpack_from("Q", scan, 32)[0]
print(json.dumps([[[(at - start) // PAGE for at in region] for region in pages], (walked - start) // PAGE]))
"""


@pytest.fixture(autouse=True)
def scans() -> None:
    if why := pager.obstacle():
        pytest.skip(why)


def loaded(**more: str) -> dict[str, str]:
    path = native_library(LIBRARY)
    return os.environ | {"LD_PRELOAD": path.name, "LD_LIBRARY_PATH": str(path.parent)} | more


def scan(tmp_path: Path, hidden: list[tuple[int, int, int]], **request: object) -> tuple[list[list[int]], int]:
    """Present pages and where the scan ended, in pages of 64; `hidden` has other process, first, end."""
    argv = [sys.executable, "-c", SCAN, json.dumps({"hidden": hidden, **request})]
    env = loaded(WHERRY_CRIU_SKIP=str(tmp_path / "hidden"))
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=waiting.bound(), check=False)
    if done.returncode:
        raise OSError(done.stderr)
    regions, walked = json.loads(done.stdout)
    return regions, walked


@pytest.mark.parametrize(
    ("hidden", "seen"),
    [
        ([], [[0, 64]]),
        ([(0, 0, 64)], []),
        ([(0, 10, 20)], [[0, 10], [20, 64]]),
        ([(0, 40, 64), (0, 0, 8), (0, 20, 21)], [[8, 20], [21, 40]]),
        ([(1, 0, 64)], [[0, 64]]),
    ],
    ids=["nothing", "all", "within", "unsorted", "another process"],
)
def test_a_dump_does_not_see_hidden_pages(
    tmp_path: Path, hidden: list[tuple[int, int, int]], seen: list[list[int]]
) -> None:
    assert scan(tmp_path, hidden) == (seen, 64)


def test_a_scan_of_a_part_keeps_to_it_and_to_its_room(tmp_path: Path) -> None:
    hidden = [(0, 10, 20), (0, 30, 40)]
    assert scan(tmp_path, hidden, range=(15, 35)) == ([[20, 30]], 35)
    regions, walked = scan(tmp_path, hidden, room=1)
    assert regions == [[0, 10]] and walked <= 20


def test_guards_are_seen_everywhere(tmp_path: Path) -> None:
    assert scan(tmp_path, [(0, 0, 64)], guard=True, missing=True) == ([], 64)


@pytest.mark.parametrize("wrong", [{"damage": 1}, {"more": 1}, {"missing": True}], ids=str)
def test_a_list_that_is_not_whole_ends_the_dump(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(OSError, match="Protocol error"):
        scan(tmp_path, [(0, 0, 64)], **wrong)


SEEK = """
import errno, mmap, os, sys
fd, other = os.memfd_create("hidden"), os.memfd_create("seen")
for one in (fd, other):
    os.ftruncate(one, 1 << 20)
    os.pwrite(one, b"x", 1 << 16)
status = os.stat(fd)
line = f"{sys.argv[1]} {status.st_dev:x} {status.st_ino:x}\\n"
crc = 0xFFFFFFFF
for byte in line.encode():
    crc ^= byte
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
with open(os.environ["WHERRY_CRIU_SKIP"], "w") as file:
    file.write(f"hidden 1 {crc ^ 0xFFFFFFFF:x}\\n{line}")
print(os.lseek(other, 0, os.SEEK_DATA), os.lseek(fd, 100, os.SEEK_SET), os.lseek(fd, 0, os.SEEK_END))
try:
    print(os.lseek(fd, 0, os.SEEK_DATA))
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize(("kind", "seen"), [("shared", "ENXIO"), ("sysv", "65536"), ("nothing", "")])
def test_a_dump_sees_no_data_in_hidden_shared_memory(tmp_path: Path, kind: str, seen: str) -> None:
    env = loaded(WHERRY_CRIU_SKIP=str(tmp_path / "hidden"))
    argv = [sys.executable, "-c", SEEK, kind]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=waiting.bound(), check=False)
    if kind == "nothing":
        assert "Protocol error" in done.stderr
    else:
        assert done.stdout.splitlines() == ["65536 100 1048576", seen]


ASK = """
import socket
asked = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
print(asked.send(b"request"), asked.recv(100))
print(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).getsockname()[1] >= 0)
"""


def test_a_dump_is_told_of_no_tracked_connections(tmp_path: Path) -> None:
    env = loaded(WHERRY_CRIU_SKIP=str(tmp_path / "hidden"))
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=env, capture_output=True, text=True, timeout=waiting.bound(), check=True
    )
    assert done.stdout == "7 b''\nTrue\n"


WAIT = """
import os, sys
directory = os.open(sys.argv[1], os.O_RDONLY)
print(os.read(os.open("other.img", os.O_RDONLY, dir_fd=directory), 9).decode(), flush=True)
print(os.read(os.open("inventory.img", os.O_RDONLY, dir_fd=directory), 9).decode(), flush=True)
"""


@pytest.mark.parametrize("opened", [True, False])
def test_a_restore_waits_at_the_gate(tmp_path: Path, opened: bool) -> None:
    (tmp_path / "other.img").write_text("other")
    gate, ours = os.pipe()
    argv = [sys.executable, "-c", WAIT, str(tmp_path)]
    with subprocess.Popen(
        argv, env=loaded(WHERRY_CRIU_GATE=str(gate)), pass_fds=[gate], stdout=subprocess.PIPE, text=True
    ) as process:
        os.close(gate)
        assert process.stdout and process.stdout.readline() == "other\n"
        (tmp_path / "inventory.img").write_text("inventory")
        if opened:
            os.write(ours, b"+")
        os.close(ours)
        assert process.stdout.read() == ("inventory\n" if opened else "")
        assert process.wait(waiting.bound()) == (0 if opened else 1)


STOP = """
import ctypes, os, select, signal, struct, sys, time
calls = ctypes.CDLL(None)
calls.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
SEIZE, INTERRUPT, GET, SET, DETACH = 0x4206, 0x4207, 12, 13, 17
RIP, RAX, ORIG_RAX = 16, 10, 15
reader, writer = os.pipe()
child = os.fork()
if not child:
    class Look(ctypes.Structure):
        _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]
    os._exit(calls.poll(ctypes.byref(Look(reader, 1, 0)), 1, 60000) & 255)
while open(f"/proc/{child}/syscall").read().split()[0] != "7":
    time.sleep(0.01)
assert not calls.ptrace(SEIZE, child, 0, 0) and not calls.ptrace(INTERRUPT, child, 0, 0)
os.waitpid(child, 0x40000000)
registers = (ctypes.c_longlong * 27)()
def get():
    assert not calls.ptrace(GET, child, 0, ctypes.byref(registers))
    return [registers[number] for number in (RIP, ORIG_RAX, RAX)]
first = get()
if "again" in sys.argv:  # as the kernel leaves a thread that was caught on its way back
    registers[RIP], registers[RAX], registers[ORIG_RAX] = first[0] - 2, 219, 7
    assert not calls.ptrace(SET, child, 0, ctypes.byref(registers))
    print(get() == first)
# as CRIU restarts a call, in a process whose kernel has no record of it
registers[RIP], registers[RAX], registers[ORIG_RAX] = registers[RIP] - 2, registers[ORIG_RAX], -1
print(first[1:], registers[RAX])
assert not calls.ptrace(SET, child, 0, ctypes.byref(registers)) and not calls.ptrace(DETACH, child, 0, 0)
os.write(writer, b"x")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("caught", ["once", "again"])
def test_a_wait_goes_on_wherever_it_was_stopped(caught: str) -> None:
    env = loaded(WHERRY_CRIU_ACT="dump")
    argv = [sys.executable, "-c", STOP, caught]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=waiting.bound(), check=True)
    assert done.stdout == ("True\n" if caught == "again" else "") + "[7, -513] 7\n1\n"


NAMES = """
import os, sys
top, link = sys.argv[1:]
fd = os.open(f"{top}/first", os.O_RDWR | os.O_CREAT)
if link:
    os.link(f"{top}/first", f"{top}/{link}")
os.unlink(f"{top}/first")
print(os.readlink(f"/proc/self/fd/{fd}"))
"""


@pytest.mark.parametrize(
    ("link", "seen"),
    [
        ("second", "second"),
        ("first (deleted)", "first (deleted)"),
        ("", "first (deleted)"),
        ("below/second", "first (deleted)"),
    ],
)
def test_a_file_whose_name_was_removed_has_its_other_one_in_the_directory(tmp_path: Path, link: str, seen: str) -> None:
    (tmp_path / "below").mkdir()
    env = loaded(WHERRY_CRIU_ROOT="/")
    argv = [sys.executable, "-c", NAMES, str(tmp_path), link]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=waiting.bound(), check=True)
    assert done.stdout.strip() == f"{tmp_path}/{seen}"


SMAPS = r"""
import ctypes, os, re, signal
libc = ctypes.CDLL(None)
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def smaps(pid):
    with open(libc.openat(os.open(f"/proc/{pid}", os.O_RDONLY), b"smaps", os.O_RDONLY)) as file:
        return file.read()
def names(text):
    return re.findall(r"^[0-9a-f]+-[0-9a-f]+ .* (\[\w+\])$", text, re.MULTILINE)
whole = smaps(os.getpid())
assert "[vvar]" in names(whole) and "[vdso]" in names(whole)
reader, writer = os.pipe()
if not (child := os.fork()):
    for start, end in re.findall(r"^(\w+)-(\w+) .*\[vdso\]$", whole, re.MULTILINE):
        libc.munmap(int(start, 16), int(end, 16) - int(start, 16))
    os.write(writer, b"+")
    libc.pause()
os.read(reader, 1)
text = smaps(child)
os.kill(child, signal.SIGKILL)
assert set(names(whole)) - set(names(text)) >= {"[vvar]", "[vdso]"} and "[stack]" in names(text), names(text)
mappings = len(re.findall(r"^[0-9a-f]+-[0-9a-f]+ ", text, re.MULTILINE))
assert mappings == text.count("\nVmFlags:") == text.count("\nRss:"), text
"""


def test_a_program_without_vdso_has_no_data_of_it() -> None:
    env = loaded(WHERRY_CRIU_ACT="dump")
    argv = [sys.executable, "-c", SMAPS]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=waiting.bound(), check=False)
    assert done.returncode == 0, done.stderr


FILES = """
import ctypes, json, mmap, os, sys
libc, PAGE = ctypes.CDLL(None), 4096
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
anonymous, shared = mmap.mmap(-1, 3 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), mmap.mmap(-1, PAGE)
start = ctypes.addressof(ctypes.c_char.from_buffer(anonymous)) + PAGE
assert not libc.mprotect(start, PAGE, mmap.PROT_READ)  # so it is a mapping of its own
process = os.open("/proc/self", os.O_RDONLY)
os.close(os.open("smaps", os.O_RDONLY, dir_fd=process))
files = os.open("/proc/self/map_files", os.O_RDONLY)
elsewhere = os.open(sys.argv[1], os.O_RDONLY)

def is_there(directory, name):
    try:
        return bool(os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return False

def without_zeros(line):
    return "-".join(f"{int(address, 16):x}" for address in line.split(" ")[0].split("-"))

names = [without_zeros(line) for line in open("/proc/self/maps")]
one = next(name for name in names if not is_there(files, name))
open(f"{sys.argv[1]}/{one}", "w").close()
print(json.dumps([[name for name in names if is_there(files, name)], os.listdir(files), is_there(elsewhere, one)]))
MAP_FIXED, there = 0x10, f"{start:x}-{start + PAGE:x}"
libc.mmap(start, PAGE, mmap.PROT_READ, MAP_FIXED | mmap.MAP_PRIVATE, os.open("/proc/self/exe", os.O_RDONLY), 0)
before = is_there(files, there)
os.close(os.open("smaps", os.O_RDONLY, dir_fd=process))
print(json.dumps([there in names, before, is_there(files, there)]))
"""


def test_a_dump_is_told_which_mappings_have_a_file(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", FILES, str(tmp_path)]
    done = subprocess.run(argv, env=loaded(WHERRY_CRIU_ACT="dump"), capture_output=True, text=True, check=True)
    (found, listed, elsewhere), changed = map(json.loads, done.stdout.splitlines())
    assert sorted(found) == sorted(listed) and len(listed) > 5
    assert elsewhere, "a file of such a name in another directory is no mapping"
    assert changed == [True, False, True], "it is answered from the last view of smaps"
