"""libwherry-wait: who polls in vain sleeps while others want the processor, is woken at once, and loses no message."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from wherry.base.paths import native_library

COUNT = """
import os, resource, select, time

def sleeps():
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw

def ask(poll, seconds):
    before, end = sleeps(), time.monotonic() + seconds
    while time.monotonic() < end:
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


@pytest.fixture
def crowd() -> Iterator[None]:
    """Two tasks for each processor that want it all the time."""
    words = [sys.executable, "-c", "while True: pass"]
    tasks = [subprocess.Popen(words) for _ in range(2 * (os.cpu_count() or 1))]
    yield
    for task in tasks:
        task.kill()
        task.wait()


@pytest.mark.parametrize("kind", ["poll", "epoll", "epolls", "both"])
def test_who_polls_in_vain_sleeps_while_others_want_the_processor(crowd: None, kind: str) -> None:
    program = COUNT + KINDS + f"print(ask(KINDS['{kind}'], 0.5))"
    # Sleeps of 1, 2, 4 and 8 ms: with one that lasts 8 ms at most, half a second has 60.
    assert int(run(program)) >= 10
    assert int(run(program, LD_PRELOAD="")) < 10, "the kernel's own does not sleep"


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
