"""The download of an image's kernel takes minutes on a slow network, and is cancelled at once."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from wherry.base.errors import Code, Failed
from wherry.node.vm.image import kernel


def program(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt of our own, whose download never ends."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(kernel, "_CHECK_SECONDS", 0.01)
    program(tmp_path, "apt-cache", "echo 'Depends: linux-image-9'; echo 'Version: 9-1'")
    program(tmp_path, "apt-get", f"echo $$ >{tmp_path}/pid; exec sleep 3600")
    return tmp_path


def test_it_is_cancelled(tools: Path) -> None:
    def check() -> None:
        if (tools / "pid").exists():
            raise Failed(Code.CANCELLED, "image build was cancelled")

    with pytest.raises(Failed, match="was cancelled"):
        kernel.find_kernel(tools / "cache", lambda _: None, check)
    assert not Path(f"/proc/{(tools / 'pid').read_text().strip()}").exists()
    assert list((tools / "cache").iterdir()) == []


def test_one_that_does_not_end_is_given_up(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(kernel, "time", clock)

    def check() -> None:
        clock.now += 200.0 if (tools / "pid").exists() else 0.0

    with pytest.raises(Failed) as ended:
        kernel.find_kernel(tools / "cache", lambda _: None, check)
    assert ended.value.code is Code.TIMED_OUT and "apt-get -q did not end" in ended.value.what


def test_a_failure_has_its_last_line(tools: Path) -> None:
    program(tools, "apt-get", "echo first >&2; echo 'E: no such package' >&2; exit 100")
    with pytest.raises(Failed) as ended:
        kernel.find_kernel(tools / "cache", lambda _: None, lambda: None)
    assert ended.value.why == "E: no such package"
