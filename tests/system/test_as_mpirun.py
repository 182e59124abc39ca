"""Habits of mpirun hold for `wherry run`, under both MPIs: inheritance of ranks, signals, and the end of a job whose
output nobody takes.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from realworld import RealInstance

import waiting

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
LAUNCHERS = {"openmpi": "/usr/bin/mpirun.openmpi", "mpich": "/usr/bin/mpiexec.mpich"}
INHERITED = "umask 027; ulimit -S -c 5; ulimit -S -n 500; ulimit -s unlimited; f() { echo in f; }; export -f f"
TELLS = 'umask; ulimit -c; ulimit -n; ulimit -s; nice; f; printf %s "$LINES_" "$RAW" "$1" | od -An -c; wherex'
WATCHES = """
import os, signal, sys, time
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
def note(number, _frame):
    with open(f"got.{rank}", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
def save(number, frame):
    time.sleep(float(sys.argv[1]))
    note(number, frame)
    sys.exit(0)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
    signal.signal(number, note)
signal.signal(signal.SIGTERM, save)
open(f"up.{rank}", "w").close()
while True:
    time.sleep(0.05)
"""
LOADS = """
import ctypes, os, sys
mpi = ctypes.CDLL("libmpich.so.12", getattr(os, sys.argv[1]))
assert mpi.MPI_Init(None, None) == 0
for turn in range(5):
    one, all = ctypes.c_int(1), ctypes.c_int()
    assert mpi.MPI_Allreduce(ctypes.byref(one), ctypes.byref(all), 1, 0x4C000405, 0x58000003, 0x44000000) == 0
print(all.value, flush=True)
mpi.MPI_Finalize()
"""
"""MPICH, loaded as Julia, ctypes and plug-ins do: each function is asked of the library."""


@pytest.fixture(params=list(LAUNCHERS))
def flavour(request: pytest.FixtureRequest) -> str:
    if not Path(LAUNCHERS[request.param]).exists():
        pytest.skip(f"{LAUNCHERS[request.param]} is not installed")
    return str(request.param)


@pytest.mark.smoke
def test_ranks_inherit_what_the_command_has(four: RealInstance, flavour: str) -> None:
    """Byte by byte as the same words print it without Wherry."""
    program = four.directory / "bin" / "wherex"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    environment = {
        **four.environment,
        "LINES_": "a\n\nb",
        "PATH": f"bin:{four.environment['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    environment["RAW"] = os.fsdecode(b"caf\xe9 \xee\xbe\x80")
    tells = ["bash", "-c", TELLS, "tells", os.fsdecode(b"\xff word")]

    def said(*prefix: str) -> str:
        line = ["bash", "-c", f'{INHERITED}; exec nice -n 3 "$@"', "bash", *prefix, *tells]
        done = subprocess.run(
            line, cwd=four.directory, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    natively = said()
    assert natively.startswith("0027\n5\n500\nunlimited\n") and "in f\n" in natively and natively.endswith("found\n")
    assert said(*four.command, "run", "four", "-n", "1", "--mpi", flavour, "--") == natively
    found = four("run", "four", "-n", "1", "--mpi", flavour, "wherex", PATH=environment["PATH"])
    assert (found.returncode, found.stdout) == (0, "found\n"), found.stderr


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        pytest.param((), "2", id="by itself", marks=pytest.mark.smoke),
        pytest.param(("--grace", "60s"), "8", id="with time", marks=pytest.mark.thorough),
    ],
)
def test_signals_reach_the_ranks(four: RealInstance, flavour: str, words: tuple[str, ...], seconds: str) -> None:
    """SIGTERM with time to write a checkpoint: more than Open MPI leaves them by itself, and hydra none."""
    four.file("watches.py", WATCHES)
    files = [four.directory / f"{kind}.{rank}" for kind in ("up", "got") for rank in range(2)]
    for file in files:
        file.unlink(missing_ok=True)

    def got(rank: int) -> list[str]:
        file = four.directory / f"got.{rank}"
        return file.read_text().split() if file.exists() else []

    run = ("run", "four", "-n", "2", "--mpi", flavour, "--rank-by", "node", *words, "python3", "watches.py", seconds)
    with four.start(*run) as client:
        waiting.until(lambda: all(file.exists() for file in files[:2]), "both ranks")
        job = four.json("job", "list", "four")["jobs"][-1]["id"]
        client.send_signal(signal.SIGUSR1)
        waiting.until(lambda: got(0) == got(1) == ["SIGUSR1"], "SIGUSR1 in both")
        sent = four("job", "signal", job, "USR2")
        assert sent.returncode == 0 and "sent to 2 processes" in sent.stdout, sent.stderr
        waiting.until(lambda: got(0) == got(1) == ["SIGUSR1", "SIGUSR2"], "SIGUSR2 in both")
        client.send_signal(signal.SIGALRM)
        waiting.until(lambda: len(got(0)) == len(got(1)) == 3, "SIGALRM in both")
        client.send_signal(signal.SIGTERM)
        assert client.wait(120) == 128 + signal.SIGTERM
    assert got(0) == got(1) == ["SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM"]
    assert four.json("job", "show", job)["state"] == "cancelled"
    assert four("job", "cancel", job).returncode == 0, "it has ended, as the user wants"
    assert four("job", "signal", job, "USR1").returncode == 5


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param('"$@" | head -1', "141", marks=pytest.mark.smoke),
        ('"$@" >/dev/full', "1"),
        ('"$@" >&-', "1"),
    ],
)
def test_a_job_ends_with_who_reads_its_output(four: RealInstance, line: str, code: str) -> None:
    words = [*four.command, "run", "four", "-n", "1", "yes"]
    done = subprocess.run(
        ["bash", "-c", f"{line}; echo ${{PIPESTATUS[0]}}", "bash", *words],
        cwd=four.directory, env=four.environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == code and "Traceback" not in done.stderr
    assert four.json("job", "list", "four")["jobs"][-1]["state"] == "cancelled"


def test_a_detached_job_is_waited_for(four: RealInstance) -> None:
    job = four("run", "four", "-n", "1", "--detach", "--", "sh", "-c", "sleep 1; echo done; exit 7").stdout.strip()
    assert four("job", "wait", job).returncode == 7
    followed = four("logs", "--job", job, "-f")
    assert followed.returncode == 7 and followed.stdout == "done\n"


def test_names_of_nodes_are_readable_by_all(four: RealInstance) -> None:
    assert four("exec", "four-0", "stat", "-c", "%a", "/etc/hosts").stdout == "644\n"


@pytest.mark.parametrize("mode", ["RTLD_GLOBAL", "RTLD_LOCAL"])
def test_a_program_that_loads_mpich_by_itself_ends(four: RealInstance, mode: str) -> None:
    """It hung in MPI_Finalize in half of the runs."""
    if not Path(LAUNCHERS["mpich"]).exists():
        pytest.skip("mpich is not installed")
    four.file("loads.py", LOADS)
    for _ in range(5):
        words = ("-n", "4", "--mpi", "mpich", "--timeout", "60s", "python3", "loads.py", mode)
        done = four("run", "four", *words)
        assert done.returncode == 0 and done.stdout.replace("\n", "") == "4444", done.stderr
