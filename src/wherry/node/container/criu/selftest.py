"""Proves a CRIU on this kernel: dumps and restores a process that talks to itself over TCP.

`criu check` alone is not enough: a CRIU older than the kernel may pass it and still fail on sockets. The process lives
in fresh network, PID and mount namespaces that end with the test, so nothing of it can be left behind. CRIU locks the
connection in its default way (iptables), as it does below runc. This file imports the standard library only: it is
also run by path, without site packages, inside those namespaces.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_TIMEOUT = 60.0  # seconds for one CRIU command or one wait; a loaded machine needs about 2
_BEATS = 5  # round trips over TCP that count as alive


def self_test(criu: tuple[str, ...]) -> str:
    """Why this CRIU (its command prefix) cannot move a process with a TCP connection; empty when it can. Needs root.
    TimeoutExpired when the machine is too busy for the test."""
    namespaces = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    with tempfile.TemporaryDirectory(prefix="wherry-criu-") as work:
        words = [*namespaces, *_this_file(), "drive", work, *criu]
        try:
            run = subprocess.run(words, capture_output=True, text=True, timeout=4 * _TIMEOUT, stdin=subprocess.DEVNULL)
        except OSError as error:
            return f"the self-test did not begin: {error}"
    if run.returncode and subprocess.TimeoutExpired.__name__ in run.stderr:
        raise subprocess.TimeoutExpired(words, _TIMEOUT)
    if run.returncode == 0:
        return ""
    return run.stdout.strip() or run.stderr.strip()[-400:] or f"the self-test ended with {run.returncode}"


def _this_file() -> list[str]:
    return [sys.executable, "-I", "-S", "-B", str(Path(__file__).resolve())]


def _drive(work: Path, criu: list[str]) -> str:
    """Runs as process 1 of the namespaces. Returns the failure, or nothing."""
    subprocess.run(["mount", "-t", "tmpfs", "wherry", str(work)], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    images = work / "images"
    images.mkdir()
    target = subprocess.Popen(
        [*_this_file(), "talk", str(work)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    if not _wait_for_beats(work, _BEATS):
        return "the process to be dumped did not start"
    # a move cuts the node off by itself, so CRIU must be able to leave the network alone (4.0 and later)
    common = ["-D", str(images), "-v2", "--tcp-established", "--network-lock", "skip"]
    failure = _command([*criu, "dump", "-t", str(target.pid), "-o", "dump.log", *common], images / "dump.log")
    if failure:
        return f"dump: {failure}"
    target.wait(_TIMEOUT)  # its PID must be free again
    before = _beats(work)
    failure = _command([*criu, "restore", "-d", "-o", "restore.log", *common], images / "restore.log")
    if failure:
        return f"restore: {failure}"
    if not _wait_for_beats(work, before + _BEATS):
        return "the restored process does not talk over its TCP connection"
    os.kill(target.pid, signal.SIGKILL)
    return ""


def _command(command: list[str], log: Path) -> str:
    """Runs CRIU; the first error of its log when it fails."""
    run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL)
    if run.returncode == 0:
        return ""
    text = log.read_text(errors="replace") if log.exists() else run.stderr
    return first_error(text) or f"exit code {run.returncode}"


def first_error(text: str) -> str:
    """The line of CRIU's output with the reason; lines that only follow from others, or are harmless, do not count."""
    idle = ("exited, status", "RLIMIT_NOFILE for self")
    errors = [line.strip() for line in text.splitlines() if "Error" in line]
    return next((line for line in errors if not any(words in line for words in idle)), "")


def _beats(work: Path) -> int:
    try:
        raw = (work / "beats").read_bytes()
    except OSError:
        return 0
    return int(struct.unpack("Q", raw)[0]) if len(raw) == 8 else 0


def _wait_for_beats(work: Path, count: int) -> bool:
    deadline = time.monotonic() + _TIMEOUT
    while _beats(work) < count:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _talk(work: Path) -> None:
    """Sends a counter to itself over TCP for ever and writes the received bytes into the file `beats`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    file = os.open(work / "beats", os.O_CREAT | os.O_WRONLY)
    count = 0
    while True:
        near.sendall(struct.pack("Q", count))
        (came,) = struct.unpack("Q", far.recv(8, socket.MSG_WAITALL))
        if came != count:
            return
        count += 1
        os.pwrite(file, struct.pack("Q", count), 0)
        time.sleep(0.002)


if __name__ == "__main__":
    if sys.argv[1] == "talk":
        _talk(Path(sys.argv[2]))
    else:
        reason = _drive(Path(sys.argv[2]), sys.argv[3:])
        print(reason)
        sys.exit(1 if reason else 0)
