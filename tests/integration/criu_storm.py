"""The work of a container node's engine, with CRIU itself: moves lazy_storm, in PID and mount namespaces of its own.

criu_storm.py BUILD DIRECTORY CRIU ...
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from stream_codec import PAGE
from test_pager_receive import SLOW, Receive, Stream

import waiting


def tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(one for file in children for child in file.read_text().split() for one in tree(int(child)))]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stands(pid: int) -> bool:
    """All of its threads: a thread that has not stopped yet may be about to fork."""
    threads = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(text.rpartition(")")[2].split()[0] in "TZ" for text in threads)


def stop_all(pid: int) -> None:
    """The parent first, so that nobody new comes."""
    os.kill(pid, signal.SIGSTOP)
    waiting.until(lambda: stands(pid), "the process to stop")
    for one in tree(pid)[1:]:
        os.kill(one, signal.SIGSTOP)
    waiting.until(lambda: all(map(stands, tree(pid))), "its children to stop")


def send_memory(stream: Stream, pid: int) -> None:
    """The pages that CRIU restores lazily."""
    with open(f"/proc/{pid}/mem", "rb", 0) as memory, open(f"/proc/{pid}/pagemap", "rb", 0) as pagemap:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            fields = line.split()
            start, end = (int(part, 16) for part in fields[0].split("-"))
            if (
                fields[1][3] != "p"
                or fields[4] != "0"
                or fields[-1] in ("[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]")
            ):
                continue
            send_mapping(stream, pid, memory, pagemap, start, end)


def send_mapping(stream: Stream, pid: int, memory: IO[bytes], pagemap: IO[bytes], start: int, end: int) -> None:
    pagemap.seek(start // PAGE * 8)
    entries = struct.unpack(f"{(end - start) // PAGE}Q", pagemap.read((end - start) // PAGE * 8))
    present = [entry >> 62 != 0 for entry in entries] + [False]
    first = None
    for index, there in enumerate(present):
        if there and first is None:
            first = index
        if not there and first is not None:
            memory.seek(start + first * PAGE)
            stream.data(pid, start + first * PAGE, memory.read((index - first) * PAGE))
            first = None


def run_criu(log: Path, *words: str, **kwargs: object) -> None:
    done = subprocess.run([*words, "-v4", "-o", str(log)], timeout=waiting.bound(), **kwargs)  # type: ignore[call-overload]
    errors = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
    assert done.returncode == 0, errors


def drive(build: Path, work: Path, criu: list[str]) -> None:
    images = work / "images"
    images.mkdir()
    with (work / "errors").open("w") as errors:
        target = subprocess.Popen(
            [build / "tests" / "lazy_storm", "target", work, "64"],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    waiting.until((work / "running").exists, "the process to begin")
    time.sleep(0.5)
    made = Receive(work, program=build / "bin" / "wherry-pager", rate=2 * SLOW)
    stop_all(target.pid)
    pids = tree(target.pid)
    for number, pid in enumerate(pids):
        if state(pid) != "Z":
            send_memory(made.streams[number % 2], pid)
    assert tree(target.pid) == pids, "nobody has come or gone"
    for stream in made.streams:
        stream.frame("L", address=1)
    assert made.line() == "last 1"
    near, far = socket.socketpair()
    far.close()
    page_server = ("--lazy-pages", "--ps-socket", str(near.fileno()))
    run_criu(
        images / "dump.log",
        *criu,
        "dump",
        "-t",
        str(target.pid),
        "-D",
        str(images),
        *page_server,
        pass_fds=[near.fileno()],
    )
    near.close()
    target.wait(waiting.bound())
    waiting.until(lambda: os.waitpid(-1, os.WNOHANG)[0] == 0 or made.process.poll() is not None, "no child is left")
    run_criu(
        images / "restore.log",
        *criu,
        "restore",
        "-d",
        "-D",
        str(images),
        "-W",
        str(work),
        "--lazy-pages",
        "--shell-job",
    )
    assert made.line().startswith("restored ")
    made.tasks.write_text("".join(f"{pid}\n" for pid in pids))
    assert made.process.stdin is not None
    made.process.stdin.write("thawed\n")
    made.process.stdin.flush()
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    time.sleep(0.5)
    os.kill(target.pid, signal.SIGTERM)
    waiting.until(lambda: (work / "result").exists() or state(target.pid) == "Z", "the process to check itself")
    if not (work / "result").exists():
        ended, pager = os.waitpid(target.pid, 0)[1], made.process.communicate()
        raise AssertionError(f"it ended with {ended:#x}: {(work / 'errors').read_text()}; the pager: {pager}")
    waiting.until(lambda: (work / "result").read_text() == "ok\n", "it to find itself right")
    said = made.line()
    assert said.startswith("filled "), said
    assert made.ended() == (0, "")
    print(f"{len(pids)} processes; {said}")


if __name__ == "__main__":
    drive(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
