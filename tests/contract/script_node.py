"""A node with a Python script that writes its result into own files, for tests of moves; fixtures of conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_node import EngineNode, Mode, engine_node

import waiting
from wherry.base.progress import Progress, quiet
from wherry.fabric.protocol import Fabric
from wherry.node.container.mover import ContainerMover
from wherry.node.protocol import NodeDriver, Transferred


@pytest.fixture
def node(
    nodes: tuple[NodeDriver, Fabric], objects_program: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[EngineNode]:
    """With a disk of `request.param` bytes, if a test asks for one."""
    writer = tmp_path / "no-writer"
    writer.touch()
    with engine_node(*nodes, objects_program, writer, getattr(request, "param", 0)) as made:
        yield made


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each move sends while the node is frozen."""
    found: list[int] = []
    transfer = ContainerMover.transfer

    def noted(mover: ContainerMover, progress: Progress = quiet) -> Transferred:
        result = transfer(mover, progress)
        found.append(result.bytes)
        return result

    monkeypatch.setattr(ContainerMover, "transfer", noted)
    return found


def begin(node: EngineNode, script: str) -> None:
    """Runs the script, which makes /tmp/ready when moves may begin."""
    directory = node.directory(node.node_under_test.source)
    (directory / "script.py").write_text(script)
    node.run("/bin/sh", "-c", "/usr/bin/python3 /tmp/script.py > /tmp/said 2>&1 &")
    _await_file(directory / "ready")


def go_round(node: EngineNode, mode: Mode) -> None:
    """Moves the node to each host, and back to where it began."""
    for host in ("a2", "b1", "a1"):
        node.aim(host)
        assert node.attempt(mode) == ""


def end(node: EngineNode, sent: list[int]) -> None:
    """The script finds all right; it ends once /tmp/go is there, /tmp/result has its verdict."""
    directory = node.directory(node.node_under_test.source)
    (directory / "go").touch()
    assert _await_file(directory / "result") == "True []"
    print(f"{[size // 1024 for size in sent]} KiB were sent while the node was frozen")


def _await_file(path: Path) -> str:
    waiting.until(path.exists, (path.parent / "said").read_text)
    return path.read_text()
