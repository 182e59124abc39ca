"""libwherry-yield: a process that yields again and again sleeps meanwhile; one that yields now and then does not."""

from __future__ import annotations

import os
import subprocess
import sys

from wherry.base.paths import native_library

PROGRAM = """
import os, resource, time

def naps(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for _ in range(count):
        os.sched_yield()
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before

naps(1)
waiting = naps(1000)
time.sleep(0.01)
print(waiting, naps(10))
"""


def naps(**environment: str) -> tuple[int, int]:
    """How often it slept of its own will in a thousand yields, and in ten after a pause."""
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    waiting, working = map(int, done.stdout.split())
    return waiting, working


def test_who_waits_sleeps_and_who_works_does_not() -> None:
    library = native_library("libwherry-yield.so")
    waiting, working = naps(LD_PRELOAD=library.name, LD_LIBRARY_PATH=str(library.parent))
    assert waiting > 0 and working == 0
    assert naps() == (0, 0), "the kernel's own does not sleep"
