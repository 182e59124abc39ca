"""A run of tests that is killed leaves nothing to the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from realworld import RealInstance

import killed_runs
from names import own_name

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

TESTS = Path(__file__).parents[1]
RUN = """
import sys, time
from realworld import real_instance
with real_instance("tkil") as made:
    made.up("two", 2)
    with made.ring("two", "openmpi", ranks=2, pause=10):
        print("ready", made.directory, flush=True)
        time.sleep(3600)
"""


def test_what_a_killed_run_has_left_is_removed() -> None:
    """A cluster under a job, its daemon, the job's client and its directory. Objects of runs that continue stay."""
    environment = {name: value for name, value in os.environ.items() if name != killed_runs.VARIABLE}
    environment["PYTHONPATH"] = f"{TESTS}:{TESTS / 'system'}"
    run = subprocess.Popen([sys.executable, "-c", RUN], env=environment, stdout=subprocess.PIPE, text=True)
    name = killed_runs.named(run.pid)
    try:
        assert run.stdout
        word, _, directory = run.stdout.readline().strip().partition(" ")
        left = RealInstance(own_name("tkil"), Path(directory))
        # This process gave itself the name just now; it is of the other run.
        (killed_runs.NAMES / left.instance.name).write_text(name)
        killed_runs.remove(name)
        assert word == "ready" and left.processes()
    finally:
        run.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, run.pid, os.WEXITED | os.WNOWAIT)
        killed_runs.remove(name)  # nobody has asked for its exit code yet
        run.wait()
    found = left.all_resources()
    assert not any(names for kind, names in found.items() if kind != "interfaces"), found
    assert not Path(directory).exists()
