"""scripts/debian-packages: missing packages are installed, and an error names the command to repeat."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGET = f"setup-{os.getpid()}"
STUBS = {
    "dpkg-query": '[ "$4" = there ] && printf installed',
    "apt-get": 'echo "$*" >>"$SAID"; case "$*" in *$FAILS*) echo "no network"; exit 100 ;; esac',
    "sudo": 'exec "$@"',
}


@pytest.fixture
def stubs(tmp_path: Path) -> Iterator[Path]:
    """Programs of that name, and nothing is left of the log."""
    for name, text in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    yield tmp_path
    (ROOT / "build" / f"{TARGET}.log").unlink(missing_ok=True)


def run(stubs: Path, *packages: str, fails: str = "nothing") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "SAID": str(stubs / "said"), "FAILS": fails}
    words = [str(ROOT / "scripts" / "debian-packages"), TARGET, *packages]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_only_what_is_missing_is_installed(stubs: Path) -> None:
    done = run(stubs, "there", "missing")
    assert done.returncode == 0 and done.stderr == f"{TARGET}: installing Debian packages: missing\n"
    update, install = (stubs / "said").read_text().splitlines()
    assert update.endswith(" update") and install.endswith(" install -y --no-install-recommends missing")


def test_nothing_is_asked_when_all_is_there(stubs: Path) -> None:
    done = run(stubs, "there")
    assert done.returncode == 0 and done.stderr == f"{TARGET}: already there: there\n"
    assert not (stubs / "said").exists()


@pytest.mark.parametrize("fails", ["update", "install"])
def test_an_error_says_what_to_repeat(stubs: Path, fails: str) -> None:
    done = run(stubs, "missing", fails=fails)
    assert done.returncode == 1 and "no network\n" in done.stderr, done.stderr
    assert f"apt-get {fails} failed" in done.stderr and f"make {TARGET}\n" in done.stderr
