"""The sandbox of the launchers of accounts' jobs, for real: a hostile launcher sees and reaches nothing of the machine,
and is gone with all its processes; and it is held as others are.

The same looks are taken without the sandbox, where each finds its thing: so none is blind."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import waiting
from names import own_name
from wherry.base.errors import Failed
from wherry.base.paths import Instance
from wherry.fabric import named_netns
from wherry.fabric.cgroup import Cgroup
from wherry.job import holder_files, holder_start, launcher_sandbox
from wherry.job.launcher_command import LaunchPlan
from wherry.model.accounts import FIRST_UID
from wherry.model.owner import Owner
from wherry.node.container import seccomp

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and other users are root's")
ANN = Owner(uid=FIRST_UID + 7, gid=FIRST_UID + 7, groups=(FIRST_UID + 7,), home="/", cwd="/")
LOOK = """
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
backwards, hidden, directory, port, mark = sys.argv[1:6]
secret = backwards[::-1]  # so that this process does not show it
def call(*words):
    return libc.syscall(*map(ctypes.c_long, words)) >= 0
def connects(kind, address):
    with socket.socket(kind, socket.SOCK_STREAM) as end:
        try:
            end.connect(address)
        except OSError:
            return False
        return True
def text(path):
    try:
        return open(path, "rb").read().decode(errors="replace")
    except OSError:
        return ""
def writes(path):
    try:
        open(path, "w").close()
    except OSError:
        return False
    return True
others = [pid for pid in os.listdir("/proc") if pid.isdigit()]
found = {
    "processes of others": any(secret in text(f"/proc/{pid}/cmdline") for pid in others),
    "files of hidden directories": secret in text(hidden),
    "directory of the daemon's sockets": os.path.exists(directory),
    "network of the machine": connects(socket.AF_INET, ("127.0.0.1", int(port))),
    "abstract sockets": connects(socket.AF_UNIX, "\\0" + secret),
    "shared memory": mark in text("/proc/sysvipc/shm").split(),
    "name of the machine": os.uname().nodename == os.environ["NAMED"],
    "/tmp": writes(f"/tmp/{secret}"),
    "/var/tmp": writes(f"/var/tmp/{secret}"),
    "/dev/shm": writes(f"/dev/shm/{secret}"),
    "ptrace": call(101, 0, 0, 0, 0),
    "namespaces": call(272, 0x10000000),
    "rights to gain": "NoNewPrivs:\\t0" in text("/proc/self/status"),
    "bounding set": "CapBnd:\\t0000000000000000" not in text("/proc/self/status"),
}
if os.path.exists("/run/wherry/first"):
    found["files that are open"] = sorted(map(int, os.listdir("/proc/self/fd"))) != [0, 1, 2, 3]
    found["first process"] = bool(text("/proc/1/environ") or text("/proc/1/maps"))
    os.kill(1, 9)
print(json.dumps(found))
"""
PRIVATE = ("/tmp", "/dev/shm")
"""Directories in which the sandbox has its own files, which nobody else sees."""


class Bench:
    """Launchers of an instance without daemon and cluster: its network is a namespace that reaches nothing."""

    def __init__(self, top: Path) -> None:
        self.instance = Instance(own_name("sand"))
        self.jobs = top / self.instance.name / "jobs"
        self.jobs.mkdir(parents=True)
        self.netns = f"{self.instance.prefix}-head"
        named_netns.create(self.netns)
        self.made = list[Path]()

    def start(
        self, *argv: str, name: str = "job-1", owner: Owner = ANN, input: bool = False, netns: str = "", **env: str
    ) -> Path:
        """The directory of a started job."""
        directory, variables = self.jobs / name, {"PATH": "/usr/bin:/bin", **env}
        self.made.append(directory)
        plan = LaunchPlan(list(argv), variables, {"job": "of the user"}, owner, input)
        holder_start.start(directory, netns or named_netns.path(self.netns), plan)
        return directory

    def end(self) -> None:
        for directory in self.made:
            holder_files.end_holder(directory)
            launcher_sandbox.end(directory, ANN)
        named_netns.remove(self.netns)
        (self.instance.run / "launchers" / ".runtime").rmdir()
        (self.instance.run / "launchers").rmdir()
        self.instance.run.rmdir()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.end()
    assert not Cgroup(made.instance.prefix).children()
    Cgroup(made.instance.prefix).remove()
    assert made.instance.name not in Path("/proc/self/mountinfo").read_text()


def result(directory: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a job, at its end."""
    waiting.until(lambda: holder_files.read_exit(directory), "the end of the job")
    ended = holder_files.read_exit(directory)
    chunks, _ = holder_files.read_output(directory, 0, 1 << 20)
    out, err = (b"".join(text for name, _, text in chunks if name == wanted) for wanted in ("stdout", "stderr"))
    return ended.code if ended else -1, out.decode(errors="surrogateescape"), err.decode(errors="surrogateescape")


def processes() -> list[str]:
    """Of the account, on this machine."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if entry.stat().st_uid == ANN.uid and fields[0] not in "ZX":
                found.append((entry / "cmdline").read_text())
        except OSError:  # it has ended
            continue
    return found


@pytest.fixture
def machine() -> Iterator[Callable[[], list[str]]]:
    """Things of the machine, as words for LOOK."""
    secret = f"wherry-secret-{os.getpid()}"
    libc = ctypes.CDLL(None)
    with (
        tempfile.TemporaryDirectory(dir="/srv") as hidden,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", secret]) as other,
    ):
        os.chmod(hidden, 0o755)
        file = Path(hidden, "file")
        file.write_text(secret)
        unix.bind(f"\0{secret}")
        unix.listen()
        segment = libc.shmget(os.getpid(), 4096, 0o1666)
        run = Instance(own_name("sand")).run
        yield lambda: [secret[::-1], str(file), str(run), str(tcp.getsockname()[1]), str(segment)]
        libc.shmctl(segment, 0, None)
        other.kill()
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        Path(place, secret).unlink(missing_ok=True)


def test_a_hostile_launcher_sees_and_reaches_nothing_of_the_machine(
    bench: Bench, machine: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"NAMED": os.uname().nodename}
    words = machine()
    code, out, err = result(bench.start("/usr/bin/python3", "-c", LOOK, *words, **named))
    assert code == 0, err
    confined = json.loads(out)
    assert not [place for place in PRIVATE if Path(place, words[0][::-1]).exists()]
    if not seccomp.profile(True):  # as in nodes where there are no filters
        confined = confined | {"ptrace": False, "namespaces": False}
    assert confined == {what: what in PRIVATE for what in confined}
    monkeypatch.setattr(holder_start, "is_account", lambda uid: False)
    networks = f"/proc/{os.getpid()}/ns/net"
    code, out, err = result(bench.start("/usr/bin/python3", "-c", LOOK, *words, name="job-2", netns=networks, **named))
    assert code == 0, err
    here = dict.fromkeys(confined.keys() - {"files that are open", "first process"}, True)
    assert json.loads(out) == here, (
        "without the sandbox, and with the network of the machine, each look finds its thing"
    )


def test_nothing_of_it_outlives_the_launcher(bench: Bench) -> None:
    """Whatever it did to get away: the kernel ends all processes of its namespace with the first one."""
    away = "trap '' INT TERM HUP; for n in 1 2 3; do setsid sh -c 'setsid sleep 600 & sleep 600' & done"
    directory = bench.start("bash", "-c", f"{away}; sleep 600 </dev/null >/dev/null 2>&1 & disown; exit 3")
    assert result(directory)[0] == 3
    assert processes() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_it_outlives_its_holder(bench: Bench, number: signal.Signals) -> None:
    """No daemon is needed for that."""
    directory = bench.start("bash", "-c", "trap '' TERM; (trap '' TERM; sleep 600) & sleep 600; sleep 600")
    waiting.until(lambda: len(processes()) >= 4, "its processes")
    holder = holder_files.read_holder(directory)
    assert holder
    os.kill(holder.pid, number)
    if number is signal.SIGTERM:  # at the second one it kills all that did not end
        waiting.until(lambda: not pending(holder.pid, number), "the first")
        os.kill(holder.pid, number)
        assert result(directory)[0] == 128 + 9
    waiting.until(lambda: not processes(), "the end of its processes")


def pending(pid: int, number: int) -> bool:
    """Whether the process has not taken this signal yet."""
    fields = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(fields["ShdPnd"], 16) >> (number - 1) & 1)


def test_it_is_held_like_a_launcher_outside(bench: Bench) -> None:
    """Streams apart, input, exit code, words and variables that are no text."""
    odd = "caf\uefe9"  # the byte E9 (wherry.base.bytes_text)
    script = 'read line; echo "$line $1 $ODD"; echo error >&2; cat /proc/$$/cmdline | wc -c >&2; exit 7'
    directory = bench.start("bash", "-c", script, "bash", odd, input=True, ODD=odd)
    holder_files.write_input(directory, 0, b"typed\n", True)
    code, out, err = result(directory)
    assert (code, out) == (7, "typed caf\udce9 caf\udce9\n") and err.startswith("error\n")


def test_signals_reach_the_group_of_the_launcher(bench: Bench) -> None:
    script = "trap 'echo got; exit 5' INT; echo up; while :; do sleep 0.05; done"
    directory = bench.start("bash", "-c", script)
    waiting.until(lambda: holder_files.read_output(directory, 0, 99)[0], "the start of the script")
    holder_files.end_holder(directory, signal.SIGINT)
    ended = holder_files.read_exit(directory)
    assert ended and ended.code == 5 and ended.stopped
    assert result(directory)[1] == "up\ngot\n"


def test_a_launcher_that_a_signal_kills_says_so(bench: Bench) -> None:
    assert result(bench.start("sh", "-c", "kill -11 $$"))[0] == 128 + 11


def test_what_cannot_start_says_why(bench: Bench) -> None:
    with pytest.raises(Failed, match=r"cannot run nothing-of-this-name: No such file or directory"):
        bench.start("nothing-of-this-name")
    with pytest.raises(Failed, match="Argument list too long") as caught:
        bench.start("true", "x" * (200 << 10), name="job-2")
    assert "shorter arguments" in caught.value.next
    with pytest.raises(Failed, match="/nowhere"):  # the runtime's words
        bench.start("true", name="job-3", owner=ANN.model_copy(update={"cwd": "/nowhere"}))
    waiting.until(lambda: not processes(), "nothing was started")
    assert not [one for one in bench.made if (one / "exit").exists()]


def test_its_files_are_limited_and_the_jobs_are_not_writable(bench: Bench) -> None:
    script = 'echo "$TMPDIR"; cat "$1"; echo x >"$1" || df --output=size -B1 "$TMPDIR" | tail -1'
    directory = bench.start("bash", "-c", script, "bash", str(bench.jobs / "job-1" / "own" / "job"))
    code, out, _ = result(directory)
    where, shown = out.split("\n", 1)
    assert code == 0 and where == "/tmp" and shown.startswith("of the user")
    assert int(shown.removeprefix("of the user")) <= 1 << 30


def test_root_runs_nothing_with_the_variables_of_the_account(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As LD_PRELOAD, which the runtime would load."""
    seen = list[dict[str, str]]()
    run = subprocess.run

    def noting(command: list[str], **how: object) -> object:
        seen.append(how["env"])  # type: ignore[arg-type]
        return run(command, **how)  # type: ignore[call-overload]

    monkeypatch.setattr(holder_start.subprocess, "run", noting)
    directory = bench.start("sh", "-c", "echo $GODEBUG", GODEBUG="x=1", LD_PRELOAD="/nowhere.so")
    assert result(directory)[1] == "x=1\n"
    assert [sorted(env) for env in seen] == [["PATH"]]
