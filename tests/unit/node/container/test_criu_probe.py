"""The choice of CRIU and the remembered answers; the real self-test is run where the machine allows it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from wherry.base.errors import Refused
from wherry.node.container.criu import install as criu_install
from wherry.node.container.criu import probe
from wherry.node.container.criu import probe as criu_probe
from wherry.node.container.criu import selftest as criu_selftest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="CRIU needs root")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home for answers, and no CRIU but the one a test names."""
    monkeypatch.setattr(criu_probe, "directory", lambda: tmp_path / "state" / "criu-versions")
    return tmp_path


def fake_criu(path: Path, check: str) -> str:
    """A program that answers --version, counts its calls, and does `check` for everything else."""
    path.write_text(
        f'#!/bin/sh\necho called >>{path}.calls\n[ "$1" = --version ] && {{ echo "Version: 9.9"; exit; }}\n{check}\n'
    )
    path.chmod(0o755)
    return str(path)


def calls(path: str) -> int:
    return len(Path(path + ".calls").read_text().splitlines())


@needs_root
def test_a_failing_check_is_told_and_remembered(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_criu(state / "criu", 'echo "Error (x.c:1): exited, status=1\nError (y.c:2): no such kernel"; exit 1')
    monkeypatch.setenv("WHERRY_CRIU", path)
    found = criu_probe.find()
    assert not found.works
    assert "no such kernel" in found.reason and "9.9" in found.reason
    asked = calls(path)
    assert criu_probe.find() == found
    assert calls(path) == asked, "the second answer must come from the file"


@needs_root
def test_a_changed_binary_is_tried_anew(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_criu(state / "criu", "exit 1")
    monkeypatch.setenv("WHERRY_CRIU", path)
    assert "exit code 1" in criu_probe.find().reason
    fake_criu(state / "criu", 'echo "Error (z.c:3): another"; exit 7')
    assert "another" in criu_probe.find().reason


def test_an_absent_binary_is_no_crash(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_CRIU", str(state / "nowhere"))
    assert not criu_probe.find().works


@needs_root
def test_a_check_that_passes_is_not_enough(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_criu(state / "criu", '[ "$1" = check ] || { echo "Error (s.c:4): no sockets" >&2; exit 1; }')
    monkeypatch.setenv("WHERRY_CRIU", path)
    found = criu_probe.find()
    assert not found.works
    assert "dump" in found.reason and "no sockets" in found.reason


def test_newest_private_prefix_comes_first(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHERRY_CRIU", raising=False)
    for version in ("4.9-1", "4.10-1", "4.2.1-1"):
        (criu_probe.directory() / version).mkdir(parents=True)
    private = [Path(one.path).parts[-3] for one in criu_probe._candidates() if one.origin == "private"]
    assert private == ["4.10-1", "4.9-1", "4.2.1-1"]


@needs_root
def test_the_machine_s_criu_survives_the_self_test() -> None:
    found = criu_probe.find()
    if not found.works:
        pytest.skip(f"no CRIU works here: {found.reason}")
    assert criu_selftest.self_test(found.argv) == ""
    assert shutil.which(found.path), "runc needs one executable file"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sources.list", "deb http://a.example/debian bookworm main\n", ("http://a.example/debian", "")),
        (
            "sources.list",
            "deb [arch=amd64 signed-by=/k.gpg] https://a.example/debian/ trixie main contrib\n",
            ("https://a.example/debian/", "[signed-by=/k.gpg] "),
        ),
        (
            "sources.list.d/debian.sources",
            "# note\nTypes: deb\nURIs: http://a.example/debian-security\nSuites: x\nComponents: main\n\n"
            "Types: deb deb-src\nURIs: http://a.example/debian\nSuites: x y\nComponents: main\nSigned-By: /k.gpg\n",
            ("http://a.example/debian", "[signed-by=/k.gpg] "),
        ),
    ],
)
def test_archive_from_both_formats(tmp_path: Path, name: str, text: str, expected: tuple[str, str]) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text)
    assert criu_install.debian_archive(tmp_path) == expected


def test_two_installers_at_the_same_time_both_have_the_prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(words: list[str]) -> str:
        if "-x" in words:
            loader = Path(criu_install.command(Path(words[-1]))[0])
            loader.parent.mkdir(parents=True)
            loader.write_text("mine")
        return "4.2-1\n"

    def rename(new: Path, final: Path) -> None:
        if not final.exists():  # the other one is done between a look and this step
            (final / "usr").mkdir(parents=True)
        renamed(new, final)

    renamed = os.rename
    monkeypatch.setattr(criu_install, "debian_archive", lambda sources: ("http://a.example/debian", ""))
    monkeypatch.setattr(criu_install, "_download", lambda root, source: [root / "criu_4.2-1.deb"])
    monkeypatch.setattr(criu_install, "_run", run)
    monkeypatch.setattr(criu_install.os, "rename", rename)
    assert criu_install.install_private(tmp_path) == tmp_path / "4.2-1"
    assert [path.name for path in tmp_path.iterdir()] == ["4.2-1"]
    assert os.listdir(tmp_path / "4.2-1") == ["usr"], "the first one"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# deb http://a.example/debian bookworm main\n",
        "deb http://a.example/ubuntu noble main\n",
        "deb http://a.example/debian bookworm contrib\n",
    ],
)
def test_no_debian_archive_is_refused_with_a_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "sources.list").write_text(text)
    with pytest.raises(Refused) as refusal:
        criu_install.debian_archive(tmp_path)
    assert "WHERRY_CRIU" in refusal.value.next


# Files that only save time, CRIU's cache and the answers about it, fail no move when a disk is full.


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


@needs_root
def test_a_full_disk(full: Path) -> None:
    assert probe.find().works
    assert sorted(path.name for path in full.iterdir()) == ["criu-versions", "fill"]
    assert [path.name for path in (full / "criu-versions").iterdir()] == ["answers.lock"]
