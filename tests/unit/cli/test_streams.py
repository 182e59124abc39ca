"""Commands with output that nobody reads or no disk takes, and with streams that their caller closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from wherry.base.errors import Failed
from wherry.cli import job_follow, job_output
from wherry.cli.output import live_line
from wherry.client.client import Taken

PRINTS = "from wherry.cli.main import main; main(['man'])"


def run(words: str) -> subprocess.CompletedProcess[str]:
    """A shell line in which `wherry` prints its manual page."""
    command = f'"{sys.executable}" -c "{PRINTS}"'
    script = words.replace("wherry", command)
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=120)


def test_a_reader_that_ends_is_no_error() -> None:
    done = run("set -o pipefail; wherry | true; echo ${PIPESTATUS[0]}")
    assert done.stdout == "141\n" and not done.stderr


@pytest.mark.parametrize(
    ("where", "why", "next"),
    [("/dev/full", "No space left on device", "df -h"), ("&-", "Bad file descriptor", "repeat the command with its")],
)
def test_output_that_cannot_be_written_is_told(where: str, why: str, next: str) -> None:
    done = run(f"wherry >{where}")
    told = f"standard output cannot be written\n  why: {why}\n  next: {next}"
    assert done.returncode == 1 and told in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_a_closed_standard_error_costs_nothing_else() -> None:
    done = run("wherry 2>&- <&-")
    assert done.returncode == 0 and ".TH" in done.stdout


def test_an_interrupt_loses_and_repeats_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    data, got, taken = os.urandom(1 << 20), bytearray(), Taken()

    def read() -> None:
        while len(got) < len(data):
            got.extend(os.read(reader, 1000))
            if len(got) // 1000 % 100 == 50:
                signal.raise_signal(signal.SIGINT)

    thread, interrupts = threading.Thread(target=read, daemon=True), 0
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        thread.start()
        while taken.chunks == 0:
            try:
                job_output.write_chunk(("stdout", 0.0, data), {}, "text", taken)
            except KeyboardInterrupt:
                interrupts += 1
        thread.join(60)
    os.close(reader)
    assert bytes(got) == data and interrupts and (taken.chunks, taken.bytes) == (1, 0)


def test_who_reads_no_more_is_told_from_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream, open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", full)
        with pytest.raises(job_output.ReaderGone):
            job_output.write_chunk(("stdout", 0.0, b"x"), {}, "text", Taken())
        with pytest.raises(Failed, match="standard error cannot be written"):
            job_output.write_chunk(("stderr", 0.0, b"x"), {}, "text", Taken())


@pytest.mark.parametrize(("path", "read"), [("/dev/null", False), ("/dev/zero", True), (".", False)])
def test_what_may_be_standard_input(path: str, read: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    fd = os.open(path, os.O_RDONLY)
    about = os.fstat(fd)
    os.close(fd)
    monkeypatch.setattr(job_follow.os, "fstat", lambda _fd: about)
    assert job_follow.has_input() is read


def test_progress_beside_a_terminal_is_one_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    with live_line() as show:
        for text in ("c-0: prepare 1s", "c-0: round 1: 3 MiB", "c-0: round 1: 5 MiB", "c-0: round 2: 1 MiB"):
            show(text)
            show(text)
    assert capsys.readouterr().err.splitlines() == ["c-0: prepare 1s", "c-0: round 1: 3 MiB", "c-0: round 2: 1 MiB"]
