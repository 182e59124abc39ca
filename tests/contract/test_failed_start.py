"""A container whose OCI runtime fails or hangs: the error says so, whatever becomes of the clean-up."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_node import Stand

from wherry.base.errors import Code, Failed
from wherry.fabric.protocol import Fabric
from wherry.node.container import driver as container_driver
from wherry.node.container.driver import ContainerDriver
from wherry.node.protocol import NodeDriver

CONTAINER = pytest.mark.parametrize("nodes", ["container"], indirect=True)


@pytest.fixture
def stand(nodes: tuple[NodeDriver, Fabric]) -> Iterator[Stand]:
    """A node that is not started."""
    stand = Stand(*nodes)
    yield stand
    stand.remove()


def runtime(monkeypatch: pytest.MonkeyPatch, directory: Path, script: str) -> None:
    """Has containers made by a script; the bundle is the last word but one."""
    path = directory / "runtime"
    path.write_text(f"#!/bin/sh\nfor word; do bundle=$last; last=$word; done\nplace=${{bundle%/bundle}}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("WHERRY_RUNTIME", str(path))


@CONTAINER
def test_a_failed_clean_up_does_not_hide_why_the_start_failed(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runtime(monkeypatch, tmp_path, 'umount -l "$place" && mkdir "$place/in-the-way"; exit 7')
    assert isinstance(stand.driver, ContainerDriver)
    directory = stand.driver.layout(stand.here).directory
    try:
        with (
            caplog.at_level(logging.ERROR),
            pytest.raises(Failed, match="did not start on host a1: runtime exited with 7"),
        ):
            stand.driver.start(stand.here)
        assert (directory / "in-the-way").exists(), "the clean-up failed, too"
        assert "node c-0 on host a1 could not be removed" in caplog.text
    finally:
        shutil.rmtree(directory)


@CONTAINER
def test_a_runtime_that_hangs_is_an_error_of_ours(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(container_driver, "_RUNTIME_TIMEOUT", 0.3)
    runtime(monkeypatch, tmp_path, "exec sleep 60")
    with pytest.raises(Failed, match="runtime did not end within 0.3 s") as told:
        stand.driver.start(stand.here)
    assert told.value.code == Code.TIMED_OUT
    assert not stand.driver.alive(stand.here)
