"""scripts/setup, scripts/build-progress, scripts/debian-packages: the first line, one line for each step, a bar on a
terminal, missing packages."""

from __future__ import annotations

import hashlib
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with nothing to build, whose packages are all installed and whose .venv is fresh."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "setup", tmp_path / "scripts" / "setup")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    program(tmp_path / "scripts" / "as-root", "exit 0")
    installed = 'for name in "$@"; do [ "$name" = "$LACKS" ] || echo "$name installed"; done'
    program(tmp_path / "bin" / "dpkg-query", installed)
    program(tmp_path / ".venv" / "bin" / "pip", "exit 0")
    program(tmp_path / ".venv" / "bin" / "python", "exit 0")
    found = f"{hashlib.sha256(b'[project]' + bytes([10])).hexdigest()}  pyproject.toml\n"
    (tmp_path / ".venv" / ".stamp").write_text(hashlib.sha256(found.encode()).hexdigest())
    return tmp_path


def setup(checkout: Path, *words: str, lacks: str = "") -> list[str]:
    env = {**os.environ, "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}", "LACKS": lacks}
    command = [checkout / "scripts" / "setup", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_a_setup_with_nothing_to_do_says_nothing(checkout: Path) -> None:
    assert setup(checkout, "then the demo runs") == []


def test_the_first_line_says_what_comes_and_each_step_has_one(checkout: Path) -> None:
    (checkout / ".venv" / ".stamp").unlink()
    assert setup(checkout, "then the demo runs (about 6 minutes)", lacks="hpcc") == [
        "setup: installs Debian packages (1), makes .venv (about 5 minutes), then the demo runs (about 6 minutes)",
        "setup: step 1 of 2: installing Debian packages: hpcc",
        "setup: step 2 of 2: making .venv (Python packages)",
    ]
    assert setup(checkout, lacks="hpcc")[0] == "setup: installs Debian packages (1) (about 3 minutes)"


@pytest.mark.parametrize("lines", ["[  7%] one\n[100%] other", "[1/14] one\n[14/14] other"])
def test_a_build_on_a_terminal_has_a_bar_a_log_and_its_exit_code(tmp_path: Path, lines: str) -> None:
    ours, terminal = pty.openpty()
    build = ["bash", "-c", f"printf '{lines.replace('%', '%%')}\n'; sleep 0.3; echo trouble >&2; exit 3"]
    command = [sys.executable, SCRIPTS / "build-progress", tmp_path / "log", *build]
    try:
        done = subprocess.run(command, stderr=terminal, timeout=60, env={**os.environ, "TERM": "xterm"})
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(terminal)
    assert done.returncode == 3 and "100%" in shown
    assert (tmp_path / "log").read_text() == f"{lines}\ntrouble\n"


# scripts/debian-packages: missing packages are installed, and an error names the command to repeat.


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
