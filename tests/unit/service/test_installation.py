"""`wherry doctor --install` on machines that cannot. With a real one: tests/system/test_packages.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wherry.base.errors import Code, Failed, Refused
from wherry.service import installation


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory of PATH; the caller is root."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def test_without_apt_the_packages_are_named(bin: Path) -> None:
    with pytest.raises(Refused) as refused:
        installation.install()
    assert refused.value.code == Code.UNSUPPORTED and "runc" in str(refused.value)


def test_a_failure_of_apt_is_said(bin: Path) -> None:
    program(bin / "apt-get", "echo 'no network' >&2; exit 100")
    with pytest.raises(Failed) as failed:
        installation.install()
    assert "no network" in str(failed.value) and "apt-get update" in str(failed.value)


def test_only_root_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Refused) as refused:
        installation.install()
    assert refused.value.code == Code.PERMISSION and refused.value.next == "sudo wherry doctor --install"
