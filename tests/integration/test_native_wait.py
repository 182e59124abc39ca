"""libwherry-wait: a rank that polls in vain sleeps while others want the processor, wakes at once, loses no message."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import waiting
from wherry.base.paths import native_library

COUNT = """
import os, resource, select, time

def sleeps():
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw

def ask(poll, seconds, least=0):
    before, begun = sleeps(), time.monotonic()
    while time.monotonic() < begun + seconds or (sleeps() < before + least and time.monotonic() < begun + 60):
        poll()
    return sleeps() - before
"""
KINDS = """
silent, quiet = os.pipe(), os.pipe()
set_ = select.poll()
set_.register(silent[0], select.POLLIN)
one, two = select.epoll(), select.epoll()
one.register(silent[0], select.EPOLLIN)
two.register(quiet[0], select.EPOLLIN)
KINDS = {
    "poll": lambda: set_.poll(0),
    "epoll": lambda: one.poll(0),
    "epolls": lambda: (one.poll(0), two.poll(0)),
    "both": lambda: (two.poll(0), set_.poll(0)),
}
"""


def run(program: str, **environment: str) -> str:
    """The output of a Python program, into which the library is loaded."""
    library = native_library("libwherry-wait.so")
    env = {**os.environ, "LD_PRELOAD": library.name, "LD_LIBRARY_PATH": str(library.parent), **environment}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def tasks(count: int) -> Iterator[None]:
    """So many that want a processor all the time."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for task in running:
            task.kill()
            task.wait()


@pytest.fixture
def crowd() -> Iterator[None]:
    """Two tasks for each processor."""
    with tasks(2 * (os.cpu_count() or 1)):
        yield


@pytest.mark.parametrize(
    "kind", ["poll", "both", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("epoll", "epolls"))]
)
def test_who_polls_in_vain_sleeps_while_others_want_the_processor(crowd: None, kind: str) -> None:
    # Sleeps of 1, 2, 4 and 8 ms: half a second has 60, but on a busy machine it takes longer for ten.
    program = COUNT + KINDS + f"print(ask(KINDS['{kind}'], 0.5, LEAST))"
    assert int(run(program.replace("LEAST", "10"))) >= 10
    assert int(run(program.replace("LEAST", "0"), LD_PRELOAD="")) < 10, "the kernel's own does not sleep"


def test_who_computes_between_polls_does_not_sleep(crowd: None) -> None:
    compute = "\n".join(
        ["def busy():", "    end = time.monotonic_ns() + 50_000", "    while time.monotonic_ns() < end: pass"]
    )
    program = f"{COUNT}{KINDS}{compute}\nprint(ask(lambda: (set_.poll(0), busy()), 0.5))"
    assert int(run(program)) < 5


def test_a_poll_of_nothing_does_not_sleep(crowd: None) -> None:
    assert int(run(f"{COUNT}nothing = select.poll()\nprint(ask(lambda: nothing.poll(0), 0.5))")) < 5


def test_what_is_ready_is_told_at_once_and_other_timeouts_are_kept(crowd: None) -> None:
    program = KINDS_AND_READY
    assert run(program).split() == ["True", "True", "True", "True"]


KINDS_AND_READY = (
    "import os, select, time\n"
    + KINDS
    + """
os.write(silent[1], b"x")
print(bool(set_.poll(0)), bool(one.poll(0)))
os.read(silent[0], 1)
begin = time.monotonic()
set_.poll(30), one.poll(0.03)
print(0.05 < time.monotonic() - begin)
for _ in range(2000):
    set_.poll(0)  # waits long enough to sleep
os.write(silent[1], b"x")
print(bool(set_.poll(0)))
"""
)


@pytest.mark.parametrize("kind", ["poll", "epoll", "epolls", "both"])
def test_no_message_of_a_ping_pong_is_missed(crowd: None, kind: str) -> None:
    """Sleeps that end by their timeout, though a message was there, would cost milliseconds each."""
    program = f"""
import os, select, sys, time
there, back = os.pipe(), os.pipe()
child = os.fork() == 0
mine, other = (there, back) if child else (back, there)
silent = os.pipe()
set_, one, two = select.poll(), select.epoll(), select.epoll()
set_.register(mine[0], select.POLLIN)
one.register(silent[0], select.EPOLLIN)
two.register(mine[0], select.EPOLLIN)
first, second = dict(
    poll=(set_, set_), epoll=(two, two), epolls=(one, two), both=(one, set_),
)["{kind}"]
def receive():
    while not (first.poll(0) or second.poll(0)):
        pass
    os.read(mine[0], 1)
for _ in range(1000):
    if not child:
        os.write(other[1], b"x")
    receive()
    if child:
        os.write(other[1], b"x")
if not child:
    print(os.wait()[1])
"""
    assert run(program).strip() == "0"


THREADS = """
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static int silent[2];
static volatile bool is_over; /* the waiting thread has slept */

static int64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void *run(void *work)
{
    struct pollfd set = {.fd = silent[0], .events = POLLIN};
    bool is_waiting = !*(int64_t *)work;
    struct rusage usage = {0};
    int64_t begun = now();

    while (now() < begun + 500000000 || (is_waiting ? usage.ru_nvcsw < 10 && now() < begun + 60000000000 : !is_over)) {
        poll(&set, 1, 0);
        for (int64_t begin = now(); now() - begin < *(int64_t *)work;)
            ;
        getrusage(RUSAGE_THREAD, &usage);
    }
    is_over = is_over || is_waiting;
    *(int64_t *)work = usage.ru_nvcsw;
    return NULL;
}

int main(void)
{
    int64_t work[2] = {0, 50000};
    pthread_t threads[2];

    if (pipe(silent))
        return 1;
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, run, &work[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("%ld %ld\\n", work[0], work[1]);
    return 0;
}
"""


def loaded(*libraries: str) -> dict[str, str]:
    """An environment that loads these, by name, as LD_PRELOAD is a list with blanks and the path may have some."""
    return {
        "LD_PRELOAD": " ".join(libraries),
        "LD_LIBRARY_PATH": str(native_library("libwherry-wait.so").parent),
    }


def test_a_thread_that_computes_does_not_nap_beside_one_that_waits(crowd: None, tmp_path: Path) -> None:
    source, program = tmp_path / "threads.c", tmp_path / "threads"
    source.write_text(THREADS)
    subprocess.run(["cc", "-O2", "-pthread", "-o", program, source], check=True)
    env = os.environ | loaded("libwherry-wait.so")
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=waiting.bound(), check=True)
    waits, computes = map(int, done.stdout.split())
    assert waits >= 10 and computes < 5


def test_who_slept_long_polls_less_before_it_sleeps_again(crowd: None) -> None:
    """Eight polls, not the many of 0.03 ms: others want the processor, and no sleep was in vain."""
    program = f"""{COUNT}{KINDS}
polls = 0
def one():
    global polls
    polls += 1
    set_.poll(0)
ask(one, 0.3)
polls = 0
print(ask(one, 1, 10), polls)
"""
    sleeps, polls = map(int, run(program).split())
    assert sleeps >= 10 and polls < 32 * sleeps


SOURCE = Path(__file__).resolve().parents[2] / "native" / "tests" / "testing_ranks.c"
FINALIZE = "libwherry-finalize.so"
LAUNCH = {
    "openmpi": "mpirun.openmpi --oversubscribe -n 4 --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo"
    " -x LD_PRELOAD=PRELOAD",
    "mpich": "mpiexec.mpich -n 4 -genv UCX_TLS tcp,self -genv MPIR_CVAR_NOLOCAL 1 -genv LD_PRELOAD PRELOAD",
}
SHORT = ("1000", "5000")
"""Pieces of 1 us: Open MPI polls at each eighth test only, and who polls less than every 20 us never sleeps."""


class Ranks:
    """testing_ranks, built with one MPI: as a program, with Fortran if the machine can, and as a shared library."""

    def __init__(self, flavour: str, directory: Path) -> None:
        self.flavour = flavour
        self.program, self.library = directory / "testing_ranks", directory / "libtesting_ranks.so"
        compiler, fortran = f"mpicc.{flavour}", shutil.which(f"mpifort.{flavour}")
        if not shutil.which(compiler) or not shutil.which(LAUNCH[flavour].split()[0]):
            pytest.skip(f"no {compiler} on this machine")
        flags = "-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -Wno-stringop-overflow".split()
        self.fortran = bool(fortran)
        self._call(compiler, *flags, "-shared", "-fPIC", "-o", str(self.library), str(SOURCE))
        if fortran:
            objects = [str(directory / "c.o"), str(directory / "fortran.o")]
            self._call(compiler, *flags, "-DFORTRAN", "-c", "-o", objects[0], str(SOURCE))
            self._call(fortran, "-O2", "-c", "-o", objects[1], str(SOURCE.with_suffix(".f90")))
            self._call(fortran, "-o", str(self.program), *objects)
        else:
            self._call(compiler, *flags, "-o", str(self.program), str(SOURCE))

    def command(self, *words: str) -> list[str]:
        preload = f"{FINALIZE} libwherry-wait.so" if self.flavour == "mpich" else "libwherry-wait.so"
        return [preload if w == "PRELOAD" else w.replace("PRELOAD=PRELOAD", f"PRELOAD={preload}")
                for w in LAUNCH[self.flavour].split()] + list(words)  # fmt: skip

    def environment(self) -> dict[str, str]:
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return os.environ | root | {"LD_LIBRARY_PATH": loaded()["LD_LIBRARY_PATH"]}

    def run(self, *words: str) -> dict[str, int]:
        """The report of the rank that slept most."""
        done = self._call(*self.command(*words))
        report: dict[str, int] = json.loads(done)
        return report

    def _call(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def company() -> Iterator[None]:
    """With four ranks two tasks more than processors; more would keep their launcher from its processor for long."""
    with tasks(max(0, (os.cpu_count() or 1) - 2)):
        yield


@pytest.fixture(scope="module", params=sorted(LAUNCH))
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return Ranks(request.param, tmp_path_factory.mktemp(request.param))


def assert_it_works(report: dict[str, int]) -> None:
    """At most 0.05 ms asleep, and as much for the timer, for each 0.1 ms of polling; it was a hundred times of that."""
    assert report["asleep"] < 3 * report["processor"], report


CALLS = [
    "test",
    "iprobe",
    *(
        pytest.param(call, marks=pytest.mark.thorough)
        for call in ("testall", "testany", "testsome", "improbe", "status")
    ),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_rank_that_tests_between_short_pieces_of_work_does_not_sleep(company: None, ranks: Ranks, call: str) -> None:
    report = ranks.run(str(ranks.program), call, *SHORT)
    assert report["asked"] == 5000
    assert_it_works(report)


@pytest.mark.parametrize("call", ["fortran", "f08"])
def test_nor_does_one_in_fortran(company: None, ranks: Ranks, call: str) -> None:
    if not ranks.fortran:
        pytest.skip(f"no mpifort.{ranks.flavour} on this machine")
    assert_it_works(ranks.run(str(ranks.program), call, *SHORT))


def test_nor_does_one_whose_mpi_was_loaded_for_one_library_alone(company: None, ranks: Ranks) -> None:
    """RTLD_LOCAL, as Python loads mpi4py: RTLD_NEXT does not look at the MPI library."""
    program = f"""
import ctypes
library = ctypes.CDLL({str(ranks.library)!r})
raise SystemExit(library.testing_ranks(b"test", ctypes.c_uint64({SHORT[0]}), ctypes.c_uint64({SHORT[1]})))
"""
    assert_it_works(ranks.run(sys.executable, "-c", program))


def test_messages_come_between_tests(company: None, ranks: Ranks) -> None:
    assert_it_works(ranks.run(str(ranks.program), "traffic", *SHORT))


def test_a_rank_that_computes_between_tests_never_naps(company: None, ranks: Ranks) -> None:
    assert ranks.run(str(ranks.program), "test", "50000", "2000")["switches"] < 5


def test_a_loop_of_nothing_but_tests_naps(company: None, ranks: Ranks) -> None:
    """It is a wait: others get the processor before the end of its slice."""
    assert ranks.run(str(ranks.program), "test", "0", "50000")["switches"] >= 10


@pytest.mark.thorough
def test_ranks_that_sleep_go_on_after_each_of_a_thousand_stops(company: None, ranks: Ranks, tmp_path: Path) -> None:
    """A stop interrupts the sleep in the kernel; messages that arrive meanwhile are there afterwards."""
    shown = tmp_path / "ring"
    shown.write_bytes(bytes(mmap.PAGESIZE))
    command = ranks.command(str(ranks.program), "ring", "0", "0")
    job = subprocess.Popen(command, env=ranks.environment() | {"RING": str(shown)}, stdout=subprocess.PIPE, text=True)
    with shown.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as memory:

        def state() -> tuple[int, list[int]]:
            rounds, _, *pids = struct.unpack_from("6Q", memory)
            return rounds, pids

        def more_rounds() -> None:
            before = state()[0]
            waiting.until(lambda: state()[0] >= before + 2 or job.poll() is not None, f"more than {before} rounds")
            assert job.poll() is None

        more_rounds()
        pids = state()[1]
        try:
            for turn in range(1000):
                stopped = pids if turn % 2 else [pids[turn // 2 % 4]]
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
                time.sleep(0.001)
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
                more_rounds()
            struct.pack_into("Q", memory, 8, 1)
            out, _ = job.communicate(timeout=waiting.bound())
        finally:
            if job.poll() is None:
                job.kill()
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
    report = json.loads(out)
    assert job.returncode == 0 and report["asked"] >= 1000 and report["switches"] >= 100, report
