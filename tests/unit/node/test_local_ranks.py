"""Ranks of a host as it reports them: processes, pages and maps of its own nodes alone, as values that can cross."""

from __future__ import annotations

import os
import subprocess
import zlib
from collections.abc import Iterator

import pytest
from test_mpi_page import forged

from wherry.hostlink.interface import Interface
from wherry.hostlink.values import from_plain, to_plain
from wherry.node import mpi_page
from wherry.node.local_ranks import LocalRanks
from wherry.node.mpi_page import Page
from wherry.node.rank_host import Informed, RankHost, RankProcess, ReadPage
from wherry.node.rank_sites import RankSites


class Ranks(LocalRanks):
    """Of these processes at node `c-0`."""

    def __init__(self, pids: list[int]) -> None:
        super().__init__("none")
        self.own = pids

    def _pids(self, node: str) -> list[int]:
        return self.own if node == "c-0" else []


@pytest.fixture
def rank() -> Iterator[int]:
    variables = {"WHERRY_JOB_ID": "job-1", "PMI_RANK": "3", "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sh", "-c", "echo; read x"], env=variables, stdin=-1, stdout=-1) as process:
        assert process.stdout and process.stdout.readline() == b"\n"
        yield process.pid
        process.kill()


def test_a_host_reports_the_ranks_of_its_nodes(rank: int) -> None:
    host = Ranks([rank, os.getpid(), 2**22 + 1])
    (found,) = host.ranks(("c-0", "c-1"))
    assert (found.pid, found.times.job, found.times.rank, found.times.node) == (rank, "job-1", 3, "c-0")
    assert host.newest_map("c-0", "job-1", 4) == RankSites(0, ())
    assert host.tell_map("c-0", "job-1", RankSites(1, (0, 1, 0, 1))) == Informed(0, 0)


def test_only_processes_of_the_node_are_read(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()
    monkeypatch.setattr(mpi_page, "read", lambda pid, _ranks: read.append(pid))
    host = Ranks([rank])
    assert host.mpi_page("c-0", os.getpid(), 4) is None and host.mpi_page("c-1", rank, 4) is None and not read
    assert host.mpi_page("c-0", rank, 4) is None and read == [rank]


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("mpi_page", ReadPage(b"\0\xff", 1.5)),
        ("mpi_page", None),
        ("newest_map", RankSites(2, (0, 1))),
        ("tell_map", Informed(2, 0)),
        ("ranks", ()),
    ],
)
def test_answers_cross_to_the_daemon(method: str, value: object) -> None:
    assert from_plain(Interface(RankHost).method(method).result, to_plain(value)) == value


def test_times_cross_to_the_daemon(rank: int) -> None:
    found = Ranks([rank]).ranks(("c-0",))
    assert isinstance(found[0], RankProcess)
    assert from_plain(Interface(RankHost).method("ranks").result, to_plain(found)) == found


def test_a_page_of_a_host_that_sends_anything_is_a_page_or_none() -> None:
    page = Page(forged(), 7.0)
    again = mpi_page.unpacked(mpi_page.packed(page), 7.0, 2)
    assert again and (again.data, again.read) == (page.data, 7.0)
    for data in (b"", b"no zlib", mpi_page.packed(page)[:-20], zlib.compress(bytes(50_000_000))):
        assert mpi_page.unpacked(data, 0.0, 2) is None
