"""Post-copy: a process runs while pages of it are still at the source; it never sees another page than its own.

`lazy_storm` checks itself while its pages come late (native/tests/late_pages.h), `memory_writer` is sent by a real
sender. A fault after the commit kills the node, at once or at the deadline.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_streams import PAGE
from stream_codec import packed, packed_pages
from test_pager_receive import ADDRESS, Receive, Storm, Stream
from test_pager_receive import build as build  # noqa: PLC0414 - a fixture
from test_pager_receive import group as group  # noqa: PLC0414
from test_pager_receive import receive as receive  # noqa: PLC0414
from test_pager_send import Sender, await_memory, differing, freeze, start_in
from test_pager_send import node as node  # noqa: PLC0414
from test_pager_send import programs as programs  # noqa: PLC0414

import waiting
from sanitized import sanitized
from wherry.fabric.cgroup import Cgroup

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="userfaultfd with events of forks is root's"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the sender and its subject"),
]
MORE = pytest.mark.thorough
BLOCK = 512 * PAGE
AT = (ADDRESS // BLOCK + 1) * BLOCK
"""A block of pages that come later."""


class LateStorm(Storm):
    """A storm of which half the pages come late."""

    def __init__(self, build: Path, directory: Path, mib: int, ms: int, seed: int, *how: object) -> None:
        words = [build / "tests" / "lazy_storm", build / "bin" / "wherry-pager", directory, mib, ms, 0, seed, *how]
        self.process = subprocess.Popen(
            [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline().split()
        assert said[:1] == ["storm"], self.process.communicate()
        self.receiver = int(said[1])


@pytest.mark.parametrize(("seed", "rate"), [pytest.param(1, 5, marks=MORE), (2, 20), pytest.param(3, 1000, marks=MORE)])
def test_a_storm_whose_pages_come_late_finds_every_page_right(
    build: Path, tmp_path: Path, seed: int, rate: int
) -> None:
    code, output, errors = LateStorm(build, tmp_path, 64, 1500, seed, rate).end()
    assert code == 0 and "ok: " in output and errors == "", errors


def test_late_pages_with_sanitizers(tmp_path: Path) -> None:
    build = sanitized("wherry-pager", "lazy_storm")
    code, output, errors = LateStorm(build, tmp_path, 64, 1500, 4, 10).end()
    assert code == 0 and "ok: " in output and errors == "", errors


@pytest.fixture
def listed(tmp_path: Path, group: Cgroup) -> Path:
    """Where the processes of a storm are listed, forked ones too."""
    (tmp_path / "cgroup.procs").symlink_to(group.freezer_procs_file())
    return tmp_path


@pytest.mark.parametrize(("how", "why", "least"), [("cut", "closed", 0.0), ("stall", "pages have not come", 2.0)])
def test_what_breaks_before_all_is_there_kills_the_process(
    build: Path, listed: Path, how: str, why: str, least: float
) -> None:
    began = time.monotonic()
    code, _, errors = LateStorm(build, listed, 64, 20_000, 1, 20, how).end()
    assert code == -signal.SIGKILL and time.monotonic() - began > least
    assert "BAD" not in errors and why in errors and "guard" in errors, errors


def test_killed_while_pages_come_late_the_process_dies_without_a_wrong_page(build: Path, listed: Path) -> None:
    storm = LateStorm(build, listed, 64, 20_000, 1, 1)
    time.sleep(0.2)
    os.kill(storm.receiver, signal.SIGKILL)
    code, _, errors = storm.end()
    assert code == -signal.SIGKILL and errors.count("\n") == 1 and "guard" in errors, errors


def later(streams: list[Stream]) -> None:
    """The last pass of two connections: pages 0 and 5 of a block come later."""
    streams[1].frame("M", 5, AT, 512, (0b100001).to_bytes(8, "big") + bytes(56))
    for stream in streams:
        stream.frame("P", address=1)
    assert streams[0].answer() == (1, 0)


def a_page_twice(streams: list[Stream]) -> None:
    for stream in streams:
        stream.data(5, AT, os.urandom(PAGE))
        time.sleep(0.1)


def a_page_that_is_not_awaited(streams: list[Stream]) -> None:
    streams[0].data(5, AT + PAGE, os.urandom(PAGE))


def a_hole_over_more_than_is_awaited(streams: list[Stream]) -> None:
    streams[0].frame("Z", 5, AT, 2)


def of_another_process(streams: list[Stream]) -> None:
    streams[0].data(6, AT, os.urandom(PAGE))


def a_late_page_with_a_wrong_checksum(streams: list[Stream]) -> None:
    streams[0].frame("D", 5, AT, 1, bytes(PAGE), crc=1)


def late_pages_compressed_from_others(streams: list[Stream]) -> None:
    streams[0].frame("C", 5, AT, 1, packed_pages(bytes(PAGE), check=1))


def another_round(streams: list[Stream]) -> None:
    streams[0].frame("R", address=2)


def more_that_comes_later(streams: list[Stream]) -> None:
    streams[0].frame("M", 5, AT, 512, bytes(63) + b"\1")


def a_request(streams: list[Stream]) -> None:
    streams[0].frame("Q", 5, AT, 1)


WRONG = [
    *(a_page_twice, a_page_that_is_not_awaited, a_hole_over_more_than_is_awaited, of_another_process),
    *(a_late_page_with_a_wrong_checksum, late_pages_compressed_from_others, another_round, more_that_comes_later),
    a_request,
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_late_frame_that_breaks_a_rule_ends_it(receive: Receive, wrong: Callable[[list[Stream]], None]) -> None:
    later(receive.streams)
    wrong(receive.streams)
    code, text = receive.ended()
    assert code == 4 and text.count("\n") == 1 and "connection" in text, (code, text)


def test_memory_that_is_shared_does_not_come_late(receive: Receive) -> None:
    receive.streams[0].frame("M", 2**31 + 1, AT, 512, bytes(63) + b"\1")
    code, text = receive.ended()
    assert code == 4 and "no such frame" in text


def test_late_pages_come_sealed_and_compressed(tmp_path: Path) -> None:
    """When all have come, the connections may close."""
    receive = Receive(tmp_path, key=os.urandom(32))
    try:
        first, second = receive.streams
        later(receive.streams)
        second.frame("C", 5, AT + 5 * PAGE, 1, packed_pages(bytes(range(256)) * (PAGE // 256)))
        first.data(5, AT, os.urandom(PAGE))
        time.sleep(0.3)
        for stream in receive.streams:
            stream.socket.close()
        time.sleep(0.3)
        assert receive.process.poll() is None
    finally:
        receive.close()


def test_a_late_page_in_clear_ends_a_sealed_stream(tmp_path: Path) -> None:
    receive = Receive(tmp_path, key=os.urandom(32))
    try:
        later(receive.streams)
        receive.streams[0].socket.sendall(packed("D", 5, AT, 1, PAGE, 0, 1) + bytes(PAGE))
        code, text = receive.ended()
        assert code == 4 and "not sealed" in text, (code, text)
    finally:
        receive.close()


def test_a_broken_connection_ends_it_as_long_as_pages_are_awaited(receive: Receive) -> None:
    later(receive.streams)
    receive.streams[0].data(5, AT, os.urandom(PAGE))
    receive.streams[1].socket.close()
    code, text = receive.ended()
    assert code == 3 and "connection 1" in text


@pytest.fixture
def writer(programs: tuple[Path, Path], node: Cgroup) -> Iterator[subprocess.Popen[str]]:
    started = start_in(node, [str(programs[1]), "600", "7"], stderr=subprocess.PIPE)
    await_memory(node)
    yield started
    node.thaw()
    node.kill()
    started.communicate()


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize(
    ("rounds", "how"),
    [
        *((0, {}), (2, {}), (2, {"tracking": "comparison"})),
        (2, {"key": os.urandom(32), "compress": True, "count": 3}),
    ],
    ids=["at once", "after rounds", "by comparison", "sealed and compressed over three"],
)
def test_the_sender_sends_each_page_once_and_what_is_asked_for_first(
    programs: tuple[Path, Path], node: Cgroup, tmp_path: Path, rounds: int, how: dict[str, Any]
) -> None:
    sender = Sender(programs[0], node, tmp_path, **how)
    receiver = sender.receiver
    assert sender.line()[0] == "ready"
    for _ in range(rounds):
        sender.ask("round")
    before = node.cpu_seconds()
    waiting.until(lambda: node.cpu_seconds() > before + 0.1, "writes after the rounds")
    freeze(node)
    assert sender.ask("post-copy")[0] == "hidden" and sender.line()[0] == "last"
    awaited = sorted(receiver.awaited)
    assert len(awaited) > 50 and not receiver.came
    wanted = random.Random(rounds).sample(awaited, 20)  # noqa: S311
    for pid, page in wanted:
        receiver.say("Q", pid, page)
        waiting.until(lambda one=(pid, page): one in receiver.came, "a page that was asked for")  # type: ignore[misc]
    came = -1
    while came != len(receiver.came):  # the pages next to the last page come with it
        came = len(receiver.came)
        time.sleep(0.3)
    assert came < len(awaited), "the rest waits until the node runs"
    receiver.say("Q", *wanted[0])  # again: it has come, so nobody answers
    sender.say("thawed")
    waiting.until(lambda: not receiver.awaited, "the rest")
    assert sorted(receiver.came) == awaited
    wrong, count = differing(node, receiver)
    assert not wrong, (len(wrong), count, wrong[:5])
    receiver.stopped = True
    receiver.say("F")
    sender.process.communicate(timeout=waiting.bound())
    assert sender.process.returncode == 0 and not receiver.wrong, receiver.wrong[:5]


@pytest.mark.usefixtures("writer")
def test_the_sender_outlives_who_started_it_and_ends_with_its_connection(
    programs: tuple[Path, Path], node: Cgroup, tmp_path: Path
) -> None:
    sender = Sender(programs[0], node, tmp_path)
    sender.line()
    freeze(node)
    sender.ask("post-copy")
    sender.line()
    assert sender.process.stdin
    sender.process.stdin.close()
    sender.process.stdin = None
    waiting.until(lambda: not sender.receiver.awaited, "the pages of the ended process")
    assert sender.process.poll() is None
    sender.receiver.close()
    _, errors = sender.process.communicate(timeout=waiting.bound())
    assert sender.process.returncode == 3 and "connection" in errors


@pytest.mark.usefixtures("writer")
def test_pages_that_are_gone_end_the_sender(programs: tuple[Path, Path], node: Cgroup, tmp_path: Path) -> None:
    """Nothing is sent in their place."""
    sender = Sender(programs[0], node, tmp_path)
    sender.line()
    freeze(node)
    sender.ask("post-copy")
    sender.line()
    sender.receiver.stopped = True
    node.kill()
    sender.say("thawed")
    _, errors = sender.process.communicate(timeout=waiting.bound())
    assert sender.process.returncode == 1 and "is gone" in errors
    assert sender.receiver.awaited
