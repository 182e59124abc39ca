"""A container whose OCI runtime fails or hangs: the error reports it, whatever becomes of the clean-up."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_names import INSTANCE
from test_node import NodeUnderTest

from wherry.base.errors import Code, Failed
from wherry.fabric.protocol import Fabric
from wherry.node.container import local_host
from wherry.node.container.local_host import LocalHosts
from wherry.node.protocol import NodeDriver

CONTAINER = pytest.mark.parametrize("nodes", ["container"], indirect=True)


@pytest.fixture
def node_under_test(nodes: tuple[NodeDriver, Fabric]) -> Iterator[NodeUnderTest]:
    """A node that is not started."""
    node_under_test = NodeUnderTest(*nodes)
    yield node_under_test
    node_under_test.remove()


def runtime(monkeypatch: pytest.MonkeyPatch, directory: Path, script: str) -> None:
    """Has containers made by a script; the bundle is the last word but one."""
    path = directory / "runtime"
    path.write_text(f"#!/bin/sh\nfor word; do bundle=$last; last=$word; done\nplace=${{bundle%/bundle}}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("WHERRY_RUNTIME", str(path))


@CONTAINER
def test_a_failed_clean_up_does_not_hide_why_the_start_failed(
    node_under_test: NodeUnderTest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime(monkeypatch, tmp_path, 'umount -l "$place" && mkdir "$place/in-the-way"; exit 7')
    source = node_under_test.source
    directory = LocalHosts(INSTANCE, node_under_test.fabric).of(source.host).layout(source).directory
    try:
        with (
            caplog.at_level(logging.ERROR),
            pytest.raises(Failed, match="did not start on host a1: runtime exited with 7"),
        ):
            node_under_test.driver.start(node_under_test.source)
        assert (directory / "in-the-way").exists(), "the clean-up failed, too"
        assert "node c-0 on host a1 could not be removed" in caplog.text
    finally:
        shutil.rmtree(directory)


@CONTAINER
def test_a_runtime_that_hangs_is_an_error_of_ours(
    node_under_test: NodeUnderTest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local_host, "_RUNTIME_TIMEOUT", 0.3)
    runtime(monkeypatch, tmp_path, "exec sleep 60")
    with pytest.raises(Failed, match="runtime did not end within 0.3 s") as told:
        node_under_test.driver.start(node_under_test.source)
    assert told.value.code == Code.TIMED_OUT
    assert not node_under_test.driver.alive(node_under_test.source)
