"""Files that only save time, CRIU's cache and the answers about it, fail no move when a disk is full."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from wherry.node.container.criu import probe

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="CRIU needs root")


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk with the cache and the answers, and a CRIU with the right answers."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "wherry", str(disk)], check=True)
    (disk / "criu-versions").mkdir()
    with open(disk / "fill", "wb", buffering=0) as fill, pytest.raises(OSError) as ended:
        while True:
            fill.write(bytes(4096))
    assert ended.value.errno == errno.ENOSPC
    criu = tmp_path / "criu"
    ours = os.readlink("/proc/self/ns/mnt")  # the machine's own cache stays as it is
    cache = f"[ $(readlink /proc/self/ns/mnt) != '{ours}' ] && head -c 8192 /dev/zero >/run/criu.kdat"
    criu.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "Version: 9.9"\n{cache}\nexit 0\n')
    criu.chmod(0o755)
    monkeypatch.setenv("WHERRY_CRIU", str(criu))
    monkeypatch.setattr(probe, "directory", lambda: disk / "criu-versions")
    monkeypatch.setattr(probe, "_KDAT", disk / "criu.kdat")
    monkeypatch.setattr(probe, "self_test", lambda _argv: "")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(full: Path) -> None:
    assert probe.find().works
    assert sorted(path.name for path in full.iterdir()) == ["criu-versions", "fill"]
    assert [path.name for path in (full / "criu-versions").iterdir()] == ["answers.lock"]
