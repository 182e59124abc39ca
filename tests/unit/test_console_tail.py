"""What an error tells of a node's console."""

from __future__ import annotations

from pathlib import Path

from wherry.node.console_tail import console_tail


def test_the_last_lines_without_what_steers_a_terminal(tmp_path: Path) -> None:
    console = tmp_path / "console"
    assert console_tail(console) == ""
    console.write_bytes(b"old\n" * 9000 + b"one\r\n\n\x1b[2Jtwo\x07\n" + b"x" * 999 + b"\xff\n")
    assert console_tail(console) == f"one | [2Jtwo | {'x' * 200}"
    with console.open("a") as more:
        more.write("Kernel panic - not syncing: sysrq triggered crash\nCall Trace:\n ...\n")
    assert console_tail(console) == "Kernel panic - not syncing: sysrq triggered crash"
