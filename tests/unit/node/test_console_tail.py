"""The part of a node's console that an error has."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.node import console_tail as module
from wherry.node.console_tail import console_tail, cut


def test_the_last_lines_without_what_steers_a_terminal(tmp_path: Path) -> None:
    console = tmp_path / "console"
    assert console_tail(console) == ""
    console.write_bytes(b"old\n" * 9000 + b"one\r\n\n\x1b[2Jtwo\x07\n" + b"x" * 999 + b"\xff\n")
    assert console_tail(console) == f"one | [2Jtwo | {'x' * 200}"
    with console.open("a") as more:
        more.write("Kernel panic - not syncing: sysrq triggered crash\nCall Trace:\n ...\n")
    assert console_tail(console) == "Kernel panic - not syncing: sysrq triggered crash"


def test_a_long_log_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 100_000)
    monkeypatch.setattr(module, "_KEPT", 10)
    console = tmp_path / "console"
    cut(console)
    assert not console.exists()
    with console.open("ab", buffering=0) as writer:
        writer.write(b"x" * 100_000)
        cut(console)
        assert console.stat().st_size == 100_000
        writer.write(b"the end")
        cut(console)
        writer.write(b", and more")
    assert console.read_bytes() == b"wherry: 99997 bytes were left out here\nxxxthe end, and more"
