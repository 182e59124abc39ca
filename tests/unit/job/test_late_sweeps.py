"""Processes that ended jobs left on silent nodes are killed when these answer, also by the next daemon."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

import waiting
from wherry.job.late_sweeps import LateSweeps


class Nodes:
    """Nodes that may be silent."""

    def __init__(self) -> None:
        self.silent = {"a-0", "a-1"}
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.done: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def sweep(self, id: str, nodes: Collection[str]) -> Collection[str]:
        self.asked.append((id, tuple(nodes)))
        self.go.wait(60)
        return [name for name in nodes if name in self.silent]


def test_nodes_are_asked_until_they_answer(tmp_path: Path) -> None:
    nodes = Nodes()
    (tmp_path / "job-1").mkdir()
    LateSweeps(tmp_path, nodes.sweep, nodes.done.append).note("job-1", ["a-0", "a-1"])
    following = LateSweeps(tmp_path, nodes.sweep, nodes.done.append)  # of the next daemon
    assert following.awaited("job-1")

    def idle() -> bool:
        return not following._under_way

    following.once()
    waiting.until(lambda: len(nodes.asked) == 1 and idle(), "the first look")
    nodes.silent.remove("a-0")
    following.once()
    waiting.until(lambda: len(nodes.asked) == 2 and idle(), "the second look")
    nodes.silent.clear()
    following.once()
    waiting.until(lambda: nodes.done == ["job-1"] and idle(), "the last look")
    assert nodes.asked[1:] == [("job-1", ("a-0", "a-1")), ("job-1", ("a-1",))]
    assert not following.awaited("job-1")
    following.once()
    assert len(nodes.asked) == 3


def test_a_silent_node_is_asked_once_at_a_time_and_keeps_nobody(tmp_path: Path) -> None:
    nodes = Nodes()
    nodes.go.clear()
    sweeps = LateSweeps(tmp_path, nodes.sweep, nodes.done.append)
    for job in ("job-1", "job-2"):
        (tmp_path / job).mkdir()
        sweeps.note(job, ["a-0"])
    for _ in range(3):
        sweeps.once()
    waiting.until(lambda: len(nodes.asked) == 2, "one look for each job")
    nodes.go.set()
    waiting.until(lambda: not sweeps._under_way, "the end of both")
    assert sorted(nodes.asked) == [("job-1", ("a-0",)), ("job-2", ("a-0",))]
