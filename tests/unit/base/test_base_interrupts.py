"""SIGTERM and SIGHUP end a command as Ctrl-C does: once, so that its clean-up is completed; exit code 128 + N."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from wherry.base.interrupts import interrupts_held, signals_as_interrupt

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
    print("signalled", flush=True)

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
    assert (done.returncode, done.stdout) == (0, "signalled\n"), done


# Signals that end a command, at the lines that they must not cut.


@pytest.fixture
def restored() -> Iterator[None]:
    """Begun by nohup, pytest ignores SIGHUP, and a command then does as well."""
    interrupt, hangup = signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGHUP, hangup)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_comes_after_the_lines_that_it_must_not_cut(number: signal.Signals) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), signals_as_interrupt():
        with interrupts_held():
            os.kill(os.getpid(), number)
            done.append("line")
        done.append("later")
    assert done == ["line"]


@pytest.mark.usefixtures("restored")
def test_the_handlers_are_what_they_were() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with interrupts_held():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
