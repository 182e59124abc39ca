"""SIGTERM and SIGHUP end a command as Ctrl-C does: once, so that its clean-up is completed; exit code 128 + N."""

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
        sys.stdin.readline()
        print("clean", flush=True)

execution.run = run
main.main(["study", "run", "packing"])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_cleans_up_and_a_second_one_does_not_keep_it_from_that(number: signal.Signals) -> None:
    command = ["env", "--default-signal=HUP,INT,TERM", sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout and child.stderr
        assert child.stdout.readline() == "begun\n"
        child.send_signal(number)
        assert child.stdout.readline() == "cleaning\n"
        if number != signal.SIGINT:
            child.send_signal(number)
        out, err = child.communicate("go on\n", timeout=60)
    assert (child.returncode, out) == (128 + number, "clean\n"), err
    assert "Traceback" not in err


def test_below_nohup_a_hangup_is_ignored() -> None:
    program = (
        "import os, signal\nfrom wherry.base import interrupts\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with interrupts.signals_as_interrupt():\n    os.kill(os.getpid(), signal.SIGHUP)\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and interrupts.exit_code(1) == 1\n"
    )
    assert subprocess.run([sys.executable, "-c", program], env=dict(os.environ), timeout=30).returncode == 0


_BEFORE_IT_BEGAN = """
import os, signal, time
from wherry.cli import main
from wherry.client import Client, reader

def begin_move(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)

Client.begin_move = begin_move
reader._keeps_something = lambda place: True
main.main(["move", "hello-1", "--to", "a1"])
"""


def test_a_move_that_is_cancelled_before_it_begins_says_so() -> None:
    env = {**os.environ, "WHERRY_INSTANCE": f"ti{os.getpid() % 10**6}"}  # the command starts its daemon
    try:
        done = subprocess.run(
            [sys.executable, "-c", _BEFORE_IT_BEGAN], capture_output=True, text=True, timeout=30, check=False, env=env
        )
    finally:
        down = "from wherry.cli import main; main.main(['down', '--all', '--yes'])"
        subprocess.run([sys.executable, "-c", down], capture_output=True, timeout=60, check=True, env=env)
    assert done.returncode == 128 + signal.SIGTERM, done
    assert done.stderr == "the move of hello-1 was cancelled as it began; how it ended: wherry op list\n"


_WHEN_IT_HAS_ENDED = """
import os, signal
from types import SimpleNamespace
from wherry.cli import main, move
from wherry.client import Client, reader

def tell(*_):
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    print("told", flush=True)

Client.begin_move = Client.wait = lambda *_, **__: SimpleNamespace(id="x", result={"move": {}})
move.emit = tell
reader._keeps_something = lambda place: True
main.main(["move", "hello-1", "--to", "a1"])
"""


def test_ctrl_c_that_comes_when_the_move_is_done_does_not_hide_that() -> None:
    """Exit code 130 means that a move was rolled back."""
    env = {**os.environ, "WHERRY_INSTANCE": f"ti{os.getpid() % 10**6}"}
    try:
        command = [sys.executable, "-c", _WHEN_IT_HAS_ENDED]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    finally:
        down = "from wherry.cli import main; main.main(['down', '--all', '--yes'])"
        subprocess.run([sys.executable, "-c", down], capture_output=True, timeout=60, check=True, env=env)
    assert (done.returncode, done.stdout) == (0, "told\n"), done
