"""wherry-pager permitted: processes are asked what they may use of the processor, and are left as they were."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import waiting
from sanitized import sanitized
from wherry.base.paths import native_program
from wherry.node.container import amx

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="ptrace and /proc/PID/pagemap are root's"),
    pytest.mark.skipif(not amx.supported(), reason="the kernel has no permissions for parts of the processor's state"),
]
AVX, NEVER = 2, 63
"""Features that every process of this machine may use, and that none has."""
THREADS = 200
"""Of which each was waited for half a second."""
READER = """
import os, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
print(os.read(0, 10).decode(), flush=True)
"""
SLEEPER = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *sleep_in_vfork(void *unused)
{
    if (vfork() == 0)
        for (;;)
            pause();
    return unused;
}

static void *sleep_otherwise(void *unused)
{
    for (;;)
        pause();
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;

    for (int i = 0; i < atoi(argv[1]); i++)
        if (pthread_create(&thread, NULL, sleep_in_vfork, NULL))
            return 1;
    if (argc > 2 && pthread_create(&thread, NULL, sleep_otherwise, NULL))
        return 1;
    puts("ready");
    fflush(stdout);
    sleep_in_vfork(NULL);
}
"""


@pytest.fixture(scope="module", params=["as built", "sanitized"])
def pager(request: pytest.FixtureRequest) -> Path:
    return (
        sanitized("wherry-pager") / "bin" / "wherry-pager"
        if request.param == "sanitized"
        else native_program("wherry-pager")
    )


def asked(pager: Path, *words: object) -> list[str]:
    done = subprocess.run(
        [pager, "permitted", *map(str, words)], capture_output=True, text=True, timeout=waiting.bound(), check=True
    )
    assert not done.stderr
    return done.stdout.splitlines()


def test_a_process_is_asked_and_goes_on(pager: Path) -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as reader,
        subprocess.Popen(["/bin/true"]) as ended,
    ):
        assert reader.stdin and reader.stdout and reader.stdout.readline() == "ready\n"
        try:
            waiting.until(lambda: "Z" in Path(f"/proc/{ended.pid}/stat").read_text().split(), "its end")
            maps = Path(f"/proc/{reader.pid}/maps").read_text()
            for _ in range(20):
                assert asked(pager, AVX, ended.pid, reader.pid) == [f"permitted {reader.pid}"]
                assert asked(pager, NEVER, reader.pid, ended.pid) == []
            assert Path(f"/proc/{reader.pid}/maps").read_text() == maps
            reader.stdin.write("more\n")
            assert reader.stdout.readline() == "more\n"
        finally:
            reader.kill()


def test_a_process_with_a_seccomp_filter_is_asked(pager: Path) -> None:
    """Its filter does not see the calls: in strict mode they would be its end."""
    words = "import ctypes; print('ready', flush=True); ctypes.CDLL(None).prctl(22, 1)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout and program.stdout.readline() == "ready\n"
        try:
            status = Path(f"/proc/{program.pid}/status")
            waiting.until(lambda: "Seccomp:\t1" in status.read_text(), status.read_text)
            assert asked(pager, AVX, program.pid) == [f"permitted {program.pid}"]
            assert program.poll() is None
        finally:
            program.kill()


@contextmanager
def in_vfork(directory: Path, *words: str) -> Iterator[int]:
    """The pid of a process of which all threads sleep where nothing can stop them."""
    source, program = directory / "sleeper.c", directory / "sleeper"
    source.write_text(SLEEPER)
    subprocess.run(["gcc", source, "-o", program, "-pthread"], check=True, timeout=120)
    with subprocess.Popen(
        [program, str(THREADS), *words], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as sleeper:
        try:
            assert sleeper.stdout and sleeper.stdout.readline() == "ready\n"
            tasks, awaited = Path(f"/proc/{sleeper.pid}/task"), THREADS + 1
            waiting.until(lambda: sum(" D " in (each / "stat").read_text() for each in tasks.iterdir()) == awaited)
            yield sleeper.pid
        finally:
            os.killpg(sleeper.pid, signal.SIGKILL)


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the program that sleeps")
def test_threads_that_do_not_stop_are_waited_for_together(tmp_path: Path, pager: Path) -> None:
    """Half a second for the process, not for each of its threads: that would be beyond the bound of this test."""
    with in_vfork(tmp_path) as pid, waiting.no_hang():
        assert asked(pager, AVX, pid) == [f"unknown {pid} none of its threads stops"]


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the program that sleeps")
def test_one_thread_that_stops_is_enough(tmp_path: Path, pager: Path) -> None:
    with in_vfork(tmp_path, "one") as pid, waiting.no_hang():
        assert asked(pager, AVX, pid) == [f"permitted {pid}"]


def test_wrong_words_are_refused(pager: Path) -> None:
    for words in ([], ["64", "1"], ["x", "1"], ["2", "0"], ["2", "-1"], ["2", "1x"]):
        done = subprocess.run([pager, "permitted", *words], capture_output=True, text=True, timeout=waiting.bound())
        assert done.returncode == 2 and done.stderr.startswith("usage: ") and not done.stdout
