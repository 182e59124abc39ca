"""Constructors that start processes and fail half-way: no process and no descriptor is left."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wherry.node.container.criu.rpc import Worker
from wherry.node.container.integrity import Digest, SumComparison
from wherry.node.container.streams import Receiver


@contextmanager
def only(more: int) -> Iterator[None]:
    """This process can open `more` descriptors."""
    os.close(free := os.dup(0))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


@pytest.fixture
def no_gaps() -> Iterator[None]:
    """All free descriptors are above those in use, so that a limit allows as many as its number."""
    gaps = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
    yield
    for gap in gaps:
        os.close(gap)


def held() -> tuple[set[str], list[str]]:
    """Descriptors and children of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return set(os.listdir("/proc/self/fd")), children


@pytest.mark.usefixtures("no_gaps")
def test_a_criu_worker_in_a_daemon_without_descriptors() -> None:
    for more in range(64):
        before = held()
        try:
            with only(more):
                worker = Worker(["sh", "-c", "read word", "criu"])
        except OSError as error:  # its traceback keeps the frame, so only closed descriptors are gone
            assert held() == before, f"with {more} descriptors: {error}"
        else:
            worker.close()
            assert more >= 4
            return


def test_a_receiver_that_does_not_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs = server.accept()[0]
    with pytest.raises(FileNotFoundError):
        Receiver("tree", theirs, [str(tmp_path / "no program")], True)
    assert theirs.fileno() == -1
    ours.close()


def test_parts_of_the_integrity_check_that_do_not_start(tmp_path: Path) -> None:
    too_long = "x" * (1 << 18)  # for a word of a command line
    parts: list[Callable[[socket.socket], object]] = [
        lambda end: Digest(end, Path(too_long)),
        lambda end: SumComparison(end, tmp_path, too_long),
    ]
    for part in parts:
        ours, theirs = socket.socketpair()
        before = held()
        with pytest.raises(OSError, match="too long"):
            part(theirs)
        assert theirs.fileno() == -1 and held()[1] == before[1]
        ours.close()
