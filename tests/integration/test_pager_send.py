"""wherry-pager send: after the last pass the destination has the memory of the frozen processes, page by page.

The receiver here keeps the last contents of every page. The processes are memory_writer's (native/tests), which do all
that a tracker has to follow, and report if their own memory has changed. More of it: WHERRY_PAGER_FREEZES=200.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from page_streams import PAGE, ZERO, Receiver, crc32c
from stream_codec import readable

import waiting
from names import own_name
from sanitized import sanitized
from wherry.base.errors import Failed
from wherry.base.paths import native_program
from wherry.fabric.cgroup import Cgroup, sweep

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups and ptrace are root's"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the sender's subject"),
    pytest.mark.skipif(not ctypes.util.find_library("isal"), reason="there is no ISA-L for checksums"),
]

TREE = f"wherry-{own_name('tpgs')}"
NATIVE = Path(__file__).resolve().parents[2] / "native"
FREEZES = int(os.environ.get("WHERRY_PAGER_FREEZES", "4"))
WAYS: list[dict[str, Any]] = [
    {},
    {"compress": True, "count": 5},
    {"key": os.urandom(32)},
    {"key": os.urandom(32), "compress": True, "count": 3},
]
SKIPPED_FROM = 1 << 20


class Sender:
    """wherry-pager send with its receiver."""

    def __init__(
        self,
        program: Path,
        node: Cgroup,
        directory: Path,
        tracking: str = "",
        key: bytes = b"",
        compress: bool = False,
        count: int = 2,
    ) -> None:
        self.hidden = directory / "hidden"
        ours, theirs = zip(*[connected() for _ in range(count)], strict=True)
        self.receiver = Receiver(list(ours), key)
        words = [str(program), "send", "--tasks", node.freezer_procs_file(), "--hidden", str(self.hidden)]
        words += ["--tracking", tracking] if tracking else []
        for end in theirs:
            words += ["--stream", str(end.fileno())]
        words += ["--compress"] if compress else []
        keys = readable(key) if key else []
        words += [word for end in keys for word in ("--key", str(end))]
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[*(end.fileno() for end in theirs), *keys],
        )
        for end in theirs:
            end.close()
        for descriptor in keys:
            os.close(descriptor)

    def line(self) -> list[str]:
        assert self.process.stdout and self.process.stderr
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return line.split()

    def say(self, word: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def ask(self, word: str) -> list[str]:
        self.say(word)
        return self.line()

    def end(self) -> None:
        self.receiver.stopped = True
        _, errors = self.process.communicate("end\n", timeout=waiting.bound())
        assert (self.process.returncode, errors) == (0, "")
        self.receiver.join()
        assert not self.receiver.wrong, self.receiver.wrong[:5]


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return server.accept()[0], one


@pytest.fixture(scope="module", params=["as built", "sanitized"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sender, and the writer."""
    writer = tmp_path_factory.mktemp("pager") / "writer"
    source = str(NATIVE / "tests" / "memory_writer.c")
    words = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror", source, "-o", str(writer)]
    subprocess.run([*words, "-pthread"], check=True, timeout=120)
    if request.param == "sanitized":
        return sanitized("wherry-pager") / "bin" / "wherry-pager", writer
    return native_program("wherry-pager"), writer


@pytest.fixture
def node() -> Iterator[Cgroup]:
    group = Cgroup(f"{TREE}/a1/n-0")
    group.create()
    yield group
    group.thaw()
    sweep(TREE)


def start_in(node: Cgroup, words: list[str], **options: object) -> subprocess.Popen[str]:
    """A process that begins when it is in the cgroup."""
    gate = ["/bin/sh", "-c", 'read line; exec "$@"', "sh", *words]
    process: subprocess.Popen[str] = subprocess.Popen(gate, stdin=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
    node.add(process.pid)
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.close()
    process.stdin = None  # communicate would flush it
    return process


def await_memory(node: Cgroup) -> None:
    """Until one of its processes has a MiB of its own."""
    waiting.until(lambda: any(anonymous(pid) > 1024 for pid in pids_of(node)), "a process with memory")


def anonymous(pid: int) -> int:
    """KiB; 0 of a process that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return int("0" + "".join(re.findall(r"RssAnon:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())))
    return 0


def pids_of(node: Cgroup) -> list[int]:
    return [int(pid) for pid in Path(node.freezer_procs_file()).read_text().split()]


def _number_inside(pid: int) -> int:
    return int(re.findall(r"NSpid:.*\s(\d+)\n", Path(f"/proc/{pid}/status").read_text())[0])


def pageable(pid: int) -> list[tuple[int, int, str]]:
    """Start, end and name of the private anonymous mappings that are neither the kernel's nor locked."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        area, access, _, _, inode, *name = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in area.split("-"))
        label = name[0] if name else ""
        if access[3] == "p" and inode == "0" and not label.startswith(("[vdso", "[vvar", "[vsyscall")):
            found.append((start, end, label))
    return found


def freeze(node: Cgroup) -> None:
    """In v1 a process whose threads are frozen within exec does not freeze: it waits for their end."""
    for _ in range(20):
        try:
            return node.freeze(timeout=0.5)
        except Failed:
            node.thaw()
            time.sleep(0.01)
    node.freeze()


def with_memory(node: Cgroup) -> list[int]:
    """Its processes; a process frozen while it ends (its main thread is a zombie) has no memory that can be seen."""
    return [pid for pid in pids_of(node) if "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()]


def differing(node: Cgroup, receiver: Receiver) -> tuple[list[str], int]:
    """Every page of the frozen node that the destination has otherwise, and how many there were."""
    wrong, count = [], 0
    for pid in with_memory(node):
        have = receiver.pages.get(_number_inside(pid), {})
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for start, end, name in pageable(pid):
                contents = os.pread(memory.fileno(), end - start, start)
                assert len(contents) == end - start, f"{pid}: {start:x} cannot be read"
                for at in range(0, end - start, PAGE):
                    count += 1
                    if contents[at : at + PAGE] != have.get(start + at, ZERO):
                        wrong.append(f"{pid} {start + at:x} of {start:x}-{end:x} {name}")
    return wrong, count


def check_skipped(sender: Sender, node: Cgroup, said: list[str]) -> None:
    first, rest = sender.hidden.read_text().split("\n", 1)
    lines = [line.split() for line in rest.splitlines()]
    assert said == ["hidden", str(len(lines))] and first == f"hidden {len(lines)} {crc32c(rest.encode()):08x}"
    assert not sender.hidden.with_name("hidden.tmp").exists()
    assert {int(line[0]) for line in lines} <= set(with_memory(node))
    for pid in {int(line[0]) for line in lines}:
        pointers = [
            int(Path(task, "syscall").read_text().split()[-2], 16) for task in Path(f"/proc/{pid}/task").iterdir()
        ]
        listed = [(int(start, 16), int(end, 16)) for number, start, end in lines if int(number) == pid]
        wanted = [
            (start, end)
            for start, end, name in pageable(pid)
            if end - start >= SKIPPED_FROM and name != "[stack]" and not any(start <= at < end for at in pointers)
        ]
        assert listed == wanted


@pytest.fixture
def tracking(request: pytest.FixtureRequest, programs: tuple[Path, Path]) -> str:
    """One of the ways to find dirty pages; skips the test where the kernel lacks it."""
    words = [str(programs[0]), "send", "--tracking", request.param, "--probe"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=waiting.bound())
    if done.returncode:
        pytest.skip(done.stderr.strip())
    return str(request.param)


SOME = {("wp-async", 0), ("wp-async", 3), ("comparison", 2), ("comparison", 1)}
"""Each way to track and each of WAYS once."""


@pytest.mark.parametrize(
    ("tracking", "seed"),
    [
        pytest.param(way, seed, marks=[] if (way, seed) in SOME else pytest.mark.thorough)
        for way in ("wp-async", "comparison")
        for seed in range(4)
    ],
    indirect=["tracking"],
)
def test_after_the_last_pass_every_page_is_there(
    programs: tuple[Path, Path], node: Cgroup, tmp_path: Path, seed: int, tracking: str
) -> None:
    words = [str(programs[1]), "600", str(seed + int(os.environ.get("WHERRY_PAGER_SEED", "0")))]
    in_namespace = ["unshare", "--pid", "--fork"] if seed % 2 else []
    writer = start_in(node, in_namespace + words, stderr=subprocess.PIPE)
    await_memory(node)
    sender = Sender(programs[0], node, tmp_path, tracking, **WAYS[seed])
    assert sender.line()[0] == "ready"
    pages = rounds = 0
    for number in range(FREEZES):
        for _ in range(1 + number % 3):
            rounds += 1
            assert sender.ask("round")[:2] == ["round", str(rounds)]
            time.sleep(0.02 * (number % 4))
        freeze(node)
        if number % 2:
            time.sleep(0.01)
        check_skipped(sender, node, sender.ask("last"))
        rounds += 1
        assert sender.line()[0] == "last"
        wrong, count = differing(node, sender.receiver)
        assert not wrong, (len(wrong), count, wrong[:5])
        pages += count
        node.thaw()
        time.sleep(0.05)
        assert writer.poll() is None
    sender.end()
    node_is_well(programs, node, writer)
    assert pages > 1000
    print(f"{rounds} rounds, {number + 1} freezes, {pages} pages compared")


def node_is_well(programs: tuple[Path, Path], node: Cgroup, writer: subprocess.Popen[str]) -> None:
    """It runs for a while, and its processes look at all their pages when a signal ends them."""
    time.sleep(0.3)
    for pid in pids_of(node):
        with suppress(FileNotFoundError, ProcessLookupError):
            if os.readlink(f"/proc/{pid}/exe") == str(programs[1]):  # else it is unshare, or has ended
                os.kill(pid, signal.SIGTERM)
    _, errors = writer.communicate(timeout=waiting.bound())
    assert (writer.returncode, errors) == (0, ""), "the memory of a process differs from the data it wrote"


@pytest.mark.parametrize(
    "after",
    [pytest.param(0.0005, marks=pytest.mark.thorough), 0.002, 0.02, pytest.param(0.3, marks=pytest.mark.thorough)],
)
def test_the_sender_may_be_killed_at_any_time(
    programs: tuple[Path, Path], node: Cgroup, tmp_path: Path, after: float
) -> None:
    writer = start_in(node, [str(programs[1]), "600", "5"], stderr=subprocess.PIPE)
    await_memory(node)
    sender = Sender(programs[0], node, tmp_path)
    sender.line()
    sender.say("round")
    time.sleep(after)
    sender.receiver.stopped = True
    sender.process.kill()
    sender.process.communicate()
    node_is_well(programs, node, writer)


def test_a_lost_connection_has_its_own_exit_code(programs: tuple[Path, Path], node: Cgroup, tmp_path: Path) -> None:
    writer = start_in(node, [str(programs[1]), "600", "6"], stderr=subprocess.PIPE)
    await_memory(node)
    sender = Sender(programs[0], node, tmp_path)
    sender.line()
    sender.receiver.close()
    _, errors = sender.process.communicate("round\nround\n", timeout=waiting.bound())
    assert sender.process.returncode == 3 and "a connection to the destination is lost" in errors
    node_is_well(programs, node, writer)


UNTIL_GO = "import os, time; print('ready', flush=True)\nwhile not os.path.exists('GO'): time.sleep(0.02)"


def in_child(node: Cgroup, text: str) -> subprocess.Popen[str]:
    process = start_in(node, [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def test_a_filter_that_denies_the_call_is_no_obstacle(
    programs: tuple[Path, Path], node: Cgroup, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    text = """
        import ctypes, struct
        libc = ctypes.CDLL(None, use_errno=True)
        load, equal, answer = 0x20, 0x15, 0x06
        code = [(load, 0, 0, 0), (equal, 0, 1, 323), (answer, 0, 0, 0x50001), (answer, 0, 0, 0x7fff0000)]
        rules = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
        program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(rules)))
        assert not libc.prctl(38, 1, 0, 0, 0) and not libc.prctl(22, 2, program)
        assert libc.syscall(323, 1) == -1 and ctypes.get_errno() == 1
        """
    then = "print(libc.syscall(323, 1), ctypes.get_errno())"
    process = in_child(node, f"{textwrap.dedent(text)}\n{UNTIL_GO.replace('GO', str(go))}\n{then}")
    sender = Sender(programs[0], node, tmp_path)
    assert sender.line()[:2] == ["ready", "1"]
    go.touch()
    assert process.communicate(timeout=waiting.bound())[0] == "-1 1\n", "the filter holds again"
    sender.end()


def test_locked_memory_is_left_to_criu(programs: tuple[Path, Path], node: Cgroup, tmp_path: Path) -> None:
    process = in_child(
        node,
        """
        import ctypes, mmap, time
        kept = [mmap.mmap(-1, 1 << 22, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)]
        places = [ctypes.addressof(ctypes.c_char.from_buffer(area)) for area in kept]
        for area in kept:
            area[:] = b"x" * len(area)
        assert not ctypes.CDLL(None).mlock(ctypes.c_void_p(places[0]), ctypes.c_size_t(1 << 22))
        print("ready", flush=True)
        print(*places, flush=True)
        time.sleep(60)
        """,
    )
    assert process.stdout
    locked, free = map(int, process.stdout.readline().split())
    sender = Sender(programs[0], node, tmp_path)
    sender.line()
    sender.ask("round")
    node.freeze()
    sender.ask("last")
    sender.line()
    sent = sender.receiver.pages[process.pid]
    pages = range(0, 1 << 22, PAGE)
    assert all(free + at in sent for at in pages) and not any(locked + at in sent for at in pages)
    sender.end()


def test_a_debugged_process_is_refused(programs: tuple[Path, Path], node: Cgroup, tmp_path: Path) -> None:
    trace_me = "import ctypes, time\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\nprint('ready', flush=True)\ntime.sleep(60)"
    process = in_child(node, trace_me)
    sender = Sender(programs[0], node, tmp_path)
    sender.receiver.stopped = True
    _, errors = sender.process.communicate(timeout=waiting.bound())
    process.kill()
    process.communicate()
    assert sender.process.returncode == 1 and f"process {process.pid} cannot be tracked" in errors
    assert "debugged" in errors and errors.count("\n") == 1


def test_a_stopped_process_stays_stopped(programs: tuple[Path, Path], node: Cgroup, tmp_path: Path) -> None:
    go = tmp_path / "go"
    process = in_child(node, f"{UNTIL_GO.replace('GO', str(go))}\nprint('went on')")
    process.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    sender = Sender(programs[0], node, tmp_path)
    assert sender.line()[:2] == ["ready", "1"]
    sender.ask("round")
    time.sleep(0.1)
    assert os.waitpid(process.pid, os.WUNTRACED | os.WCONTINUED | os.WNOHANG) == (0, 0), "its parent sees nothing"
    assert "State:\tT" in Path(f"/proc/{process.pid}/status").read_text()
    process.send_signal(signal.SIGCONT)
    go.touch()
    assert process.communicate(timeout=waiting.bound())[0] == "went on\n"
    sender.end()


@pytest.mark.parametrize("words", [["send"], ["send", "--tasks", "x", "--hidden", "y", "--stream", "99"]])
def test_wrong_words_are_refused(programs: tuple[Path, Path], words: list[str]) -> None:
    done = subprocess.run([str(programs[0]), *words], capture_output=True, text=True, timeout=waiting.bound())
    assert done.returncode == 2 and done.stderr.startswith("usage: ")


def test_the_kernel_is_probed(programs: tuple[Path, Path]) -> None:
    done = subprocess.run(
        [str(programs[0]), "send", "--probe"], capture_output=True, text=True, timeout=waiting.bound()
    )
    assert (done.returncode, done.stdout) == (0, "wp-async\n")
