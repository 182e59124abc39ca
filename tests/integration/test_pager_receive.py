"""`wherry-pager receive`: memory is filled in right, whatever a process does meanwhile, and never left with holes.

Frames are made here by hand. `lazy_storm` is a process that checks itself and hands its own userfaultfd over like CRIU.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from stream_codec import PAGE, TAG, Seal, crc32c, packed, readable, unpacked

import waiting
from names import own_name
from sanitized import sanitized
from wherry.base.paths import native_program
from wherry.fabric.cgroup import Cgroup, machine_layout
from wherry.node.container.criu import probe

SLOW = 20_000_000  # bytes a second in the background: the storm lasts longer than the filling otherwise
ADDRESS = 0x7F0000000000

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="userfaultfd with events of forks is root's")


class Stream:
    """The sender's end of one connection, and the end that `receive` inherits."""

    def __init__(self, seal: Seal | None = None, answers: Seal | None = None) -> None:
        self._seal, self._answers = seal, answers
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.socket = socket.create_connection(server.getsockname())
            self.theirs, _ = server.accept()
        self.socket.settimeout(waiting.bound())
        self.sent = 0

    def frame(
        self, kind: str, pid: int = 0, address: int = 0, pages: int = 0, data: bytes = b"", crc: int | None = None
    ) -> None:
        crc = crc if crc is not None else crc32c(data) if data else 0
        header = packed(kind, pid, address, pages, len(data), crc, self.sent)
        self.sent += 1
        self.socket.sendall(self._seal.frame(header, data) if self._seal else header + data)

    def data(self, pid: int, address: int, data: bytes) -> None:
        for at in range(0, len(data), 256 * PAGE):
            part = data[at : at + 256 * PAGE]
            self.frame("D", pid, address + at, len(part) // PAGE, part)

    def answer(self) -> tuple[int, int]:
        """The number of the round, and of the answer."""
        header = self.socket.recv(32 + TAG if self._answers else 32, socket.MSG_WAITALL)
        opened = self._answers.header(header) if self._answers else header
        kind, pid, number, pages, length, crc, sequence = unpacked(opened)
        assert (kind, pid, pages, length, crc) == ("A", 0, 0, 0, 0)
        return number, sequence


class Receive:
    """A running `wherry-pager receive` that has reported it is ready."""

    def __init__(
        self,
        directory: Path,
        streams: int = 2,
        program: Path | None = None,
        tasks: str | Path = "",
        rate: int = 0,
        key: bytes = b"",
    ) -> None:
        seals = [Seal(key, number) if key else None for number in range(streams)]
        self.streams = [Stream(seal, Seal(key, 0, to_source=True) if key else None) for seal in seals]
        self.socket = directory / "lazy-pages.socket"
        self.tasks = tasks if isinstance(tasks, Path) else directory / "cgroup.procs"
        if isinstance(tasks, str):
            self.tasks.write_text(tasks)
        fds = [stream.theirs.fileno() for stream in self.streams]
        words = ["--socket", str(self.socket), "--tasks", str(self.tasks), "--fill-rate", str(rate)]
        words += [word for fd in fds for word in ("--stream", str(fd))]
        keys = readable(key) if key else []
        words += [word for fd in keys for word in ("--key", str(fd))]
        self.process = subprocess.Popen(
            [program or native_program("wherry-pager"), "receive", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[*fds, *keys],
            text=True,
        )
        for stream in self.streams:
            stream.theirs.close()
        for fd in keys:
            os.close(fd)
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ended(self) -> tuple[int, str]:
        """Exit code and standard error."""
        assert self.process.stderr is not None
        code = self.process.wait(waiting.bound())
        return code, self.process.stderr.read()

    def guard(self) -> int:
        pid = self.process.pid
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(found[0]) if found else 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        for stream in self.streams:
            stream.socket.close()


@pytest.fixture
def receive(tmp_path: Path) -> Iterator[Receive]:
    made = Receive(tmp_path)
    yield made
    made.close()


def test_it_answers_each_round_when_it_has_come_on_all_connections(receive: Receive) -> None:
    first, second = receive.streams
    page = os.urandom(PAGE)
    first.data(5, ADDRESS, page * 300)
    first.frame("R", address=1)
    second.frame("Z", 5, ADDRESS, 2**32 - 1)
    second.frame("X", 9)
    first.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        first.answer()
    first.socket.settimeout(waiting.bound())
    second.frame("R", address=1)
    assert first.answer() == (1, 0) and receive.line() == "round 1"
    for stream in receive.streams:
        stream.frame("R", address=2)
    assert first.answer() == (2, 1) and receive.line() == "round 2"
    second.data(5, ADDRESS, page)
    second.data(5, ADDRESS + (2 << 20) - PAGE, page * 2)  # in two chunks
    second.frame("L", address=3)
    second.socket.shutdown(socket.SHUT_WR)  # a connection that ends after its last pass is not broken
    first.frame("L", address=3)
    assert first.answer() == (3, 2) and receive.line() == "last 3"
    assert first.socket.recv(1) == b""


def test_its_socket_is_private_and_may_lie_deep(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    made = Receive(deep)
    try:
        assert made.socket.is_socket() and made.socket.stat().st_mode & 0o777 == 0o600
        made.process.terminate()
        assert made.ended() == (0, "") and not made.socket.exists()
    finally:
        made.close()


def test_the_end_of_its_input_ends_it_before_a_process_needs_it(receive: Receive) -> None:
    guard = receive.guard()
    assert receive.process.stdin is not None
    receive.process.stdin.close()
    assert receive.ended()[0] == 1 and not receive.socket.exists()
    assert not Path(f"/proc/{guard}").exists()


def wrong_crc(streams: list[Stream]) -> None:
    streams[0].frame("D", 5, ADDRESS, 1, bytes(PAGE), crc=1)


def wrong_sequence(streams: list[Stream]) -> None:
    streams[1].sent = 7
    streams[1].frame("Z", 5, ADDRESS, 1)


def wrong_type(streams: list[Stream]) -> None:
    streams[0].frame("A", address=1)


def a_round_too_many(streams: list[Stream]) -> None:
    streams[0].frame("R", address=2)


def data_after_the_last(streams: list[Stream]) -> None:
    streams[0].frame("L", address=1)
    streams[0].data(5, ADDRESS, bytes(PAGE))


def an_unaligned_page(streams: list[Stream]) -> None:
    streams[0].frame("D", 5, ADDRESS + 1, 1, bytes(PAGE))


def another_address(streams: list[Stream]) -> None:
    """One bit changes on the way: the payload is right, its place is not."""
    page = os.urandom(PAGE)
    header = bytearray(packed("D", 5, ADDRESS, 1, PAGE, crc32c(page), 0))
    header[14] ^= 0x10
    streams[0].socket.sendall(bytes(header) + page)


def another_hole(streams: list[Stream]) -> None:
    """One bit changes on the way: a page more is zero."""
    header = bytearray(packed("Z", 5, ADDRESS, 2, 0, 0, 0))
    header[19] ^= 1
    streams[0].socket.sendall(header)


def a_frame_twice(streams: list[Stream]) -> None:
    for _ in range(2):
        streams[0].sent = 0
        streams[0].data(5, ADDRESS, bytes(PAGE))


def the_last_pass_on_one_only(streams: list[Stream]) -> None:
    streams[0].frame("L", address=1)
    streams[1].frame("R", address=1)


def two_last_passes(streams: list[Stream]) -> None:
    streams[0].frame("L", address=1)
    streams[1].frame("L", address=2)


WRONG = [
    *(wrong_crc, wrong_sequence, wrong_type, a_round_too_many, data_after_the_last, an_unaligned_page),
    *(another_address, another_hole, a_frame_twice, the_last_pass_on_one_only, two_last_passes),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_frame_that_breaks_a_rule_ends_it(receive: Receive, wrong: Callable[[list[Stream]], None]) -> None:
    wrong(receive.streams)
    code, text = receive.ended()
    assert code == 4 and text.count("\n") == 1 and "connection" in text
    assert not receive.socket.exists()


@pytest.mark.parametrize("sent", [b"", b"12345", packed("D", 5, ADDRESS, 1, PAGE, 0, 0) + b"x"])
def test_a_broken_connection_ends_it(receive: Receive, sent: bytes) -> None:
    receive.streams[1].socket.sendall(sent)
    receive.streams[1].socket.close()
    code, text = receive.ended()
    assert code == 3 and text.count("\n") == 1 and "connection 1" in text
    assert not receive.socket.exists()


def test_killed_before_a_process_needs_it_nobody_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as sleep:
        made = Receive(tmp_path, tasks=f"{sleep.pid}\n")
        guard = made.guard()
        made.close()
        waiting.until(lambda: not Path(f"/proc/{guard}").exists(), "the guard to end")
        assert sleep.poll() is None
        sleep.kill()


@pytest.mark.parametrize("listed_still", [True, False])
def test_the_guard_kills_no_process_that_has_got_a_number_of_the_node(receive: Receive, listed_still: bool) -> None:
    """The list is read, the process held, and the list read again: here the test answers each time."""
    guard = receive.guard()
    receive.tasks.unlink()
    os.mkfifo(receive.tasks)

    def answer(text: str) -> None:
        with receive.tasks.open("w") as pipe:  # as soon as the guard has opened it; the next open gets another pipe
            os.mkfifo(following := receive.tasks.with_name("following"))
            following.rename(receive.tasks)
            pipe.write(text)

    with socket.socket(socket.AF_UNIX) as criu, subprocess.Popen(["sleep", "1000"]) as sleep:
        try:
            criu.connect(str(receive.socket))
            criu.sendall(struct.pack("i", 5))  # a process needs it from now on
            criu.sendall(b"x")  # where a descriptor is expected
            answer(f"{sleep.pid}\n")
            answer(f"{sleep.pid}\n" if listed_still else "\n")
            if listed_still:
                assert sleep.wait(waiting.bound()) == -signal.SIGKILL
                answer("\n")
            waiting.until(lambda: not Path(f"/proc/{guard}").exists(), "the guard to end")
            assert sleep.poll() == (-signal.SIGKILL if listed_still else None)
        finally:
            sleep.kill()


@pytest.mark.skipif(not machine_layout().v2, reason="cgroup v2 is not mounted")
def test_with_cgroup_v2_the_guard_kills_the_group_and_what_is_below_it(tmp_path: Path) -> None:
    assert (root := machine_layout().v2)
    node = root / f"wherry-{own_name('tpgv')}"
    below = node / "below"
    below.mkdir(parents=True)
    with subprocess.Popen(["sleep", "1000"]) as one, subprocess.Popen(["sleep", "1000"]) as two:
        try:
            if not (node / "cgroup.kill").exists():
                pytest.skip("the kernel is older than 5.14")
            (node / "cgroup.procs").write_text(str(one.pid))
            (below / "cgroup.procs").write_text(str(two.pid))
            made = Receive(tmp_path, tasks=node / "cgroup.procs")
            with socket.socket(socket.AF_UNIX) as criu:
                criu.connect(str(made.socket))
                criu.sendall(struct.pack("i", 5))  # a process needs it from now on
                criu.sendall(b"x")  # where a descriptor is expected
                assert one.wait(waiting.bound()) == two.wait(waiting.bound()) == -signal.SIGKILL
            made.close()
        finally:
            one.kill()
            two.kill()
            one.wait()
            two.wait()
            below.rmdir()
            node.rmdir()


class Storm:
    """lazy_storm with a receiver of its own, so far that it has handed its descriptor over."""

    def __init__(self, build: Path, directory: Path, mib: int, ms: int, rate: int, seed: int = 1) -> None:
        words = [build / "tests" / "lazy_storm", build / "bin" / "wherry-pager", directory, mib, ms, rate, seed]
        self.process = subprocess.Popen(
            [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.match(r"storm (\d+)\n", self.process.stdout.readline())
        assert found, self.process.communicate()
        self.receiver = int(found[1])

    def guard(self) -> int:
        found = Path(f"/proc/{self.receiver}/task/{self.receiver}/children").read_text().split()
        return int(found[0]) if found else 0

    def guard_is_ready(self) -> bool:
        """It takes its name when it begins to watch."""
        with suppress(OSError):
            return Path(f"/proc/{self.guard()}/comm").read_text() == "wherry-guard\n"
        return False

    def end(self) -> tuple[int, str, str]:
        """Waits for it first: the guard runs as long as one of the listed processes exists."""
        self.process.wait(waiting.bound(180))
        output, errors = self.process.communicate(timeout=waiting.bound())
        return self.process.returncode, output, errors


@pytest.fixture
def build() -> Path:
    return native_program("wherry-pager").parents[1]


@pytest.fixture
def group() -> Iterator[Cgroup]:
    made = Cgroup(f"wherry-{own_name('tpgr')}")
    made.create()
    yield made
    made.kill()
    made.remove()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_of_changes_finds_every_page_right(build: Path, tmp_path: Path, seed: int) -> None:
    code, output, errors = Storm(build, tmp_path, 256, 1500, SLOW, seed).end()
    assert code == 0 and output.startswith("ok") and errors == "", errors


def test_a_storm_while_it_fills_as_fast_as_it_can(build: Path, tmp_path: Path) -> None:
    code, output, errors = Storm(build, tmp_path, 256, 1000, 0).end()
    assert code == 0 and output.startswith("ok") and errors == "", errors


def test_clean_with_sanitizers(tmp_path: Path) -> None:
    build = sanitized("wherry-pager", "test_pager_receive", "lazy_storm")
    subprocess.run([build / "tests" / "test_pager_receive"], check=True, timeout=200)
    code, output, errors = Storm(build, tmp_path, 64, 1500, SLOW).end()
    assert code == 0 and output.startswith("ok") and errors == "", errors


def test_unit_tests(build: Path) -> None:
    subprocess.run([build / "tests" / "test_pager_receive"], check=True, timeout=200)


def test_sigterm_does_not_end_it_while_a_process_needs_it(build: Path, tmp_path: Path) -> None:
    storm = Storm(build, tmp_path, 64, 500, SLOW)
    os.kill(storm.receiver, signal.SIGTERM)
    code, output, errors = storm.end()
    assert code == 0 and output.startswith("ok") and errors == "", errors


@pytest.mark.parametrize("guard_first", [False, True])
def test_killed_while_a_process_needs_it_the_process_dies_without_a_wrong_page(
    build: Path, tmp_path: Path, group: Cgroup, guard_first: bool
) -> None:
    (tmp_path / "cgroup.procs").symlink_to(group.freezer_procs_file())
    storm = Storm(build, tmp_path, 64, 20000, 1_000_000)
    if guard_first:
        killed = storm.guard()
        os.kill(killed, signal.SIGKILL)
        waiting.until(lambda: storm.guard() != killed and storm.guard_is_ready(), "another guard")
    os.kill(storm.receiver, signal.SIGKILL)
    code, _, errors = storm.end()
    assert code == -signal.SIGKILL
    assert errors.count("\n") == 1 and "guard" in errors, errors


@pytest.mark.skipif(probe.lazy_obstacle() != "", reason=f"CRIU cannot restore lazily: {probe.lazy_obstacle()}")
def test_criu_restores_a_storm(build: Path, tmp_path: Path) -> None:
    """In PID and mount namespaces of its own: the process numbers have to be free, and nothing is left behind."""
    criu = probe.find()
    namespaces = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    here = [
        sys.executable,
        str(Path(__file__).resolve().with_name("criu_storm.py")),
        str(build),
        str(tmp_path),
        *criu.argv,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*namespaces, *here],
        timeout=waiting.bound(240),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
