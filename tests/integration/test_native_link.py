"""wherry-link with sanitizers: its arithmetic, and the program between two namespaces, with various settings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import waiting
from names import own_name
from wherry.fabric import link_emulator, named_netns
from wherry.fabric.link_emulator import LinkEmulator
from wherry.model.spec.fabric import DirectionSpec

TOP = Path(__file__).resolve().parents[2] / "native"
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{TOP}/include"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
NAMES = tuple(f"wherry-{own_name('tnli')}-{end}" for end in "ab")


def built(directory: Path, name: str, *sources: str) -> Path:
    words = ["gcc", *FLAGS, *SANITIZERS, *(f"{TOP}/{source}" for source in sources), "-o", str(directory / name)]
    subprocess.run(words, check=True, timeout=200)
    return directory / name


def test_arithmetic(tmp_path: Path) -> None:
    program = built(tmp_path, "test_link", "tests/test_link.c", "link/command.c", "link/shape.c", "link/delay_queue.c")
    subprocess.run([program], check=True, timeout=100)


@pytest.fixture
def ends() -> Iterator[list[tuple[str, str]]]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces are root's")
    for name in NAMES:
        named_netns.create(name)
    yield [(named_netns.path(name), f"t{index}") for index, name in enumerate(NAMES)]
    named_netns.kill([name for name in NAMES])
    for name in NAMES:
        named_netns.remove(name)


def test_frames_pass_and_nothing_is_left(
    tmp_path: Path, ends: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [f"link/{name}.c" for name in ("main", "command", "shape", "delay_queue", "tap")]
    program = built(tmp_path, "wherry-link", *sources, "lib/netdev.c")
    usual = link_emulator.native_program
    monkeypatch.setattr(link_emulator, "native_program", lambda name: program if name == "wherry-link" else usual(name))
    link = LinkEmulator(tmp_path / "control", "a--b")
    assert not link.alive() and link.counters() is None
    link.start(ends, 9000, (DirectionSpec(), DirectionSpec()))
    for number, ((_, tap), name) in enumerate(zip(ends, NAMES, strict=True), 1):
        subprocess.run(["ip", "-n", name, "address", "add", f"10.9.8.{number}/24", "dev", tap], check=True)
    assert ping("-f", "-c200", "-s8000") > 150
    slow = {"latency": "20ms", "jitter": "5ms", "bandwidth": "1Gbit/s", "loss": "50%"}
    link.set((DirectionSpec.model_validate(slow), DirectionSpec.model_validate({"latency": "10ms"})))
    assert 20 < ping("-i0.002", "-c200") < 180
    link.set((DirectionSpec(loss=1.0), DirectionSpec()))
    assert ping("-i0.002", "-c20") == 0
    found = link.counters()
    assert found and found["there"]["lost"] > 40 and found["back"]["frames"] > 170 and found["cpu_us"] > 0
    process = link._process.child
    assert process and process.poll() is None
    link.end()
    assert process.returncode == 0, "no leak, no overflow"
    assert not link.alive()


def test_one_that_hangs_is_ended(tmp_path: Path, ends: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    link = LinkEmulator(tmp_path / "control", "a--b")
    link.start(ends, 9000, (DirectionSpec(), DirectionSpec()))
    monkeypatch.setattr(link_emulator, "TIMEOUT", 0.3)
    os.kill(pid := only_emulator(tmp_path), signal.SIGSTOP)
    link.end()
    assert not Path(f"/proc/{pid}").exists() and not link.alive()


def test_one_that_hangs_is_ended_by_the_next_daemon(
    tmp_path: Path, ends: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next daemon has only the link's name. It also replaces a hanging emulator by a working one."""
    first = LinkEmulator(tmp_path / "control", "a--b")
    first.start(ends, 9000, (DirectionSpec(), DirectionSpec()))
    monkeypatch.setattr(link_emulator, "TIMEOUT", 0.3)
    os.kill(hung := only_emulator(tmp_path), signal.SIGSTOP)
    later = LinkEmulator(tmp_path / "control", "a--b")
    assert later.alive() and not later.set((DirectionSpec(), DirectionSpec()))
    later.end()
    assert not later.alive() and first._process.pid() is None, "reaped by its parent, which is this process here"
    assert not Path(f"/proc/{hung}").exists() and not [tap for name in NAMES for tap in taps(name)]
    monkeypatch.setattr(link_emulator, "TIMEOUT", 5.0)
    later.start(ends, 9000, (DirectionSpec(), DirectionSpec()))
    os.kill(only_emulator(tmp_path), signal.SIGSTOP)
    third = LinkEmulator(tmp_path / "control", "a--b")
    third.start(ends, 9000, (DirectionSpec(), DirectionSpec()))
    assert third.set((DirectionSpec(), DirectionSpec())) and only_emulator(tmp_path)
    third.end()


def only_emulator(directory: Path) -> int:
    """The process of the one link whose socket is in the directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_text().split("\0")
            if words[0].endswith("wherry-link") and str(directory / "control") in words:
                found.append(int(process.name))
    (pid,) = found
    return pid


def taps(name: str) -> list[str]:
    shown = subprocess.run(["ip", "-n", name, "-o", "link"], capture_output=True, text=True, check=True).stdout
    return [line.split(": ")[1] for line in shown.splitlines() if "lo:" not in line]


def ping(*words: str) -> int:
    """How many came back."""
    command = ["ip", "netns", "exec", NAMES[0], "ping", "-q", "-W1", *words, "10.9.8.2"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=waiting.bound()).stdout
    return int(said.partition(" packets transmitted, ")[2].split(" ")[0])
