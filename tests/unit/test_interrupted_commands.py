"""SIGTERM and SIGHUP end a command as Ctrl-C does: once, so that what it cleans up is cleaned up; exit code 128 + N."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

_PROGRAM = """
import sys, time
from wherry.base.interrupts import signals_as_interrupt
from wherry.cli import main, study
from wherry.lab.study import execution

def run(*_, **__):
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        print("cleaning", flush=True)
        time.sleep(1)
        print("clean", flush=True)

execution.run = run
main.main(["study", "run", "fake"])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_cleans_up_and_a_second_one_does_not_keep_it_from_that(number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as below nohup, and commands keep that")
    command = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stderr
        assert child.stdout.readline() == "begun\n"
        child.send_signal(number)
        assert child.stdout.readline() == "cleaning\n"
        if number != signal.SIGINT:
            child.send_signal(number)
        out, err = child.communicate(timeout=30)
    assert (child.returncode, out) == (128 + number, "clean\n"), err
    assert "Traceback" not in err


def test_below_nohup_a_hangup_is_ignored() -> None:
    program = (
        "import os, signal\nfrom wherry.base import interrupts\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with interrupts.signals_as_interrupt():\n    os.kill(os.getpid(), signal.SIGHUP)\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and interrupts.exit_code(1) == 1\n"
    )
    assert subprocess.run([sys.executable, "-c", program], env=dict(os.environ), timeout=30).returncode == 0
