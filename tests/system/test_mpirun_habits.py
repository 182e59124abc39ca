"""More habits of users of mpirun: signals to `wherry exec`, a terminal as input, limits that survive a move."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance

import waiting
from wherry.node.container.criu.probe import find as find_criu

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
LAUNCHERS = {"openmpi": "/usr/bin/mpirun.openmpi", "mpich": "/usr/bin/mpiexec.mpich"}
TRAPS = """
trap "echo got USR1" USR1
trap "echo got TERM; exit 0" TERM
echo began
while :; do sleep 0.1; done
"""
READS = """
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] || exit 0
echo ready
read word
echo "rank 0 read $word"
cat >/dev/null
echo "input ended"
"""
TELLS = """
tell() { umask; ulimit -Sc; ulimit -Sn; ulimit -Hn; ulimit -Ss; ulimit -Sv; nice; : >"made-$1"; stat -c %a "made-$1"; }
tell before
touch printed
while [ ! -e moved ]; do sleep 0.1; done
echo moved
tell after
"""
LIMITED = 'umask 027; ulimit -S -c 5; ulimit -n 500; ulimit -S -s 4000; ulimit -S -v 9000000; exec nice -n 3 "$@"'


@pytest.mark.smoke
def test_signals_reach_a_program_of_exec(four: RealInstance) -> None:
    running = four.start("exec", "four-0", "--", "sh", "-c", TRAPS)
    assert running.stdout and running.stdout.readline() == "began\n"
    for _ in range(2):
        running.send_signal(signal.SIGUSR1)
        assert running.stdout.readline() == "got USR1\n"
    running.terminate()
    assert running.communicate(timeout=SECONDS)[0] == "got TERM\n", "it has the time to say so"
    assert running.returncode == 128 + signal.SIGTERM


@contextmanager
def on_terminal(four: RealInstance, *words: str) -> Iterator[tuple[int, int]]:
    """A command that leads a session on a terminal: its number, and the terminal's other end."""
    child, master = pty.fork()
    if child == 0:
        try:
            os.chdir(four.directory)
            os.execve(four.command[0], [*four.command, *words], four.environment)
        finally:
            os._exit(127)
    ended = False
    try:
        yield child, master
        ended = True
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(master)


def shown(master: int, part: str) -> str:
    """The output of the terminal until that has `part`."""
    text, deadline = "", time.monotonic() + waiting.bound()
    while part not in text:
        assert time.monotonic() < deadline, text
        if select.select([master], [], [], 0.2)[0]:
            text += os.read(master, 65536).decode()
    return text


def code_of(child: int) -> int:
    waiting.until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT), "the command's end")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("flavour", LAUNCHERS)
def test_rank_0_reads_what_is_typed(four: RealInstance, flavour: str) -> None:
    if not Path(LAUNCHERS[flavour]).exists():
        pytest.skip(f"{LAUNCHERS[flavour]} is not installed")
    with on_terminal(four, "run", "four", "-n", "2", "--mpi", flavour, "sh", "-c", READS) as (child, master):
        shown(master, "ready")
        os.write(master, b"a word\n")
        shown(master, "rank 0 read a word")
        os.write(master, b"\x04")
        shown(master, "input ended")
        assert code_of(child) == 0


def test_ctrl_c_on_a_terminal_ends_the_job(four: RealInstance) -> None:
    with on_terminal(four, "run", "four", "-n", "1", "sh", "-c", "echo ready; sleep 1002") as (child, master):
        shown(master, "ready")
        os.write(master, b"\x03")
        assert code_of(child) == 128 + signal.SIGINT
    assert four.json("job", "list", "four")["jobs"][-1]["state"] == "cancelled"


@pytest.mark.skipif(not find_criu().works, reason="no CRIU works here")
def test_limits_and_umask_stay_when_the_node_moves(four: RealInstance) -> None:
    for name in ("printed", "moved"):
        (four.directory / name).unlink(missing_ok=True)
    words = ["bash", "-c", LIMITED, "bash", *four.command, "run", "four", "-n", "1", "--hosts", "four-0"]
    running = subprocess.Popen(
        [*words, "bash", "-c", TELLS], cwd=four.directory, env=four.environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    waiting.until((four.directory / "printed").exists, "its values before the move")
    assert four.move("four-0", next(host for host in four.hosts() if host != four.hosts_of("four")["four-0"]))
    (four.directory / "moved").touch()
    before, after = running.communicate(timeout=SECONDS)[0].split("moved\n")
    assert running.returncode == 0 and after == before
    assert before.split() == ["0027", "5", "500", "500", "4000", "9000000", "3", "640"]
