"""Programs that wherry-init and wherry-rsh run: their streams, ends, signals and orphans; the C unit tests."""

from __future__ import annotations

import hashlib
import io
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from nodeprocess import KEY, Client, NodeProcess, as_root, names, node, node_process, programs

import waiting
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.model.owner import Owner

__all__ = ["node", "programs"]  # fixtures


def test_the_c_unit_tests(programs: Path) -> None:
    for name in ("test_wire", "test_queues", "test_guest"):
        subprocess.run([programs.parent / "tests" / name], check=True, timeout=waiting.bound())


@as_root
def test_it_holds_nothing_of_the_host(node: NodeProcess) -> None:
    links = list[str]()
    for entry in Path(f"/proc/{node.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the node just answered who looked whether it is there
            links.append(os.readlink(entry))
    assert sorted({link.split(":")[0] for link in links}) == ["/dev/null", "pipe", "socket"]


@as_root
def test_a_program_has_its_streams_its_user_and_its_end(node: NodeProcess) -> None:
    with Client(node.port) as client:
        client.run(
            "sh", "-c", 'cat; id -u; id -G; pwd; echo "$GREETING" >&2; exit 7', cwd="/tmp", uid=65534, groups="4,24"
        )
        kind, pid = client.receive()
        assert kind == "S" and int(pid) > 1
        client.send("I", b"in\n")
        client.send("I")
        assert client.rest() == {"O": b"in\n65534\n65534 4 24\n/tmp\n", "E": b"a b  c\n", "X": b"exit 7"}


@as_root
@pytest.mark.parametrize(
    ("argv", "cwd", "reason"),
    [
        (["nothing-of-this-name"], "/", b"cannot run nothing-of-this-name: No such file or directory"),
        (["/etc/passwd"], "/", b"cannot run /etc/passwd: Permission denied"),
        (["true"], "/not/there", b"cannot enter the directory /not/there: No such file or directory"),
    ],
)
def test_what_cannot_start_says_why(node: NodeProcess, argv: list[str], cwd: str, reason: bytes) -> None:
    with Client(node.port) as client:
        client.run(*argv, cwd=cwd)
        assert client.rest() == {"F": reason}


@as_root
def test_a_malformed_request_and_a_second_one(node: NodeProcess) -> None:
    with Client(node.port) as client:
        client.send("R", b"0\0")
        assert list(client.rest()) == ["F"]
    with Client(node.port) as client:
        client.run("sleep", "300")
        assert client.receive()[0] == "S"
        client.run("true")
        assert client.receive()[0] == ""
    waiting.until(lambda: not names(node.pid), "the end of the program whose client misbehaved")


@as_root
def test_it_reaps_and_counts_what_is_left_behind(node: NodeProcess) -> None:
    with Client(node.port) as client:
        client.run("sh", "-c", "setsid sleep 300 </dev/null >/dev/null 2>&1 & (sleep 0.1 &) ; exit 0")
        assert client.rest()["X"] == b"exit 0"
    waiting.until(lambda: names(node.pid) == ["sleep 300"], "the reaping of the second")
    with Client(node.port) as client:
        client.send("P")
        assert client.receive() == ("P", b"1")


@as_root
def test_the_end_is_told_though_a_descendant_keeps_the_pipes(node: NodeProcess) -> None:
    with Client(node.port) as client:
        client.run("sh", "-c", "echo out; sleep 300 & exit 3")
        assert {k: v for k, v in client.rest().items() if k != "S"} == {"O": b"out\n", "X": b"exit 3"}
    assert names(node.pid) == ["sleep 300"], "and it lives on"


@as_root
def test_a_program_whose_client_leaves_gets_hangup(node: NodeProcess) -> None:
    mark = node.directory / "mark"
    with Client(node.port) as client:
        client.run("sh", "-c", f"trap 'echo hup >{mark}; exit' HUP; echo ready; while :; do sleep 0.05; done")
        assert client.receive()[0] == "S"
        assert client.receive() == ("O", b"ready\n")
    waiting.until(lambda: mark.exists() and mark.read_text() == "hup\n", "the hangup")


@as_root
def test_a_session_is_signalled_as_a_whole(node: NodeProcess) -> None:
    with Client(node.port) as client, Client(node.port) as other:
        client.run("bash", "-c", "set -m; sleep 300 & echo ready; wait")
        pid = client.receive()[1].decode()
        assert client.receive() == ("O", b"ready\n")
        other.send("K", b"999999 15")
        assert other.receive()[0] == "F"
        other.send("K", f"{pid} 9".encode())
        assert other.receive()[0] == "P"
        assert client.rest() == {"X": b"signal 9"}
    waiting.until(lambda: not names(node.pid), "the end of the other process group")


@as_root
def test_no_byte_is_lost_when_both_sides_are_slow(node: NodeProcess) -> None:
    data = random.Random(1).randbytes(8 << 20)
    with Client(node.port) as client:
        client.run("cat")
        assert client.receive()[0] == "S"
        client.socket.setblocking(False)
        sent, received = memoryview(b"".join(_frames(client, data))), b""
        while sent:
            try:
                sent = sent[client.socket.send(sent) :]
            except BlockingIOError:  # all buffers between here and cat are full
                client.socket.settimeout(waiting.bound())
                kind, payload = client.receive()
                assert kind == "O"
                received += payload
                client.socket.setblocking(False)
        client.socket.settimeout(waiting.bound())
        rest = client.rest()
        assert received + rest["O"] == data and rest["X"] == b"exit 0"


def _frames(client: Client, data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data) + 1, 1 << 20):
        yield client.frame("I", data[at : at + (1 << 20)])


@as_root
def test_output_in_the_pipe_at_the_end_is_not_lost_to_a_slow_client(node: NodeProcess) -> None:
    with Client(node.port) as client:
        client.run("sh", "-c", "head -c 12000000 /dev/zero; sleep 300 >/dev/null 2>&1 & exit 5")
        time.sleep(0.5)
        rest = client.rest()
        assert len(rest["O"]) == 12000000 and rest["X"] == b"exit 5"


@as_root
def test_the_daemon_feeds_a_program_and_takes_no_flood(node: NodeProcess) -> None:
    endpoint = AgentEndpoint("/proc/self/ns/net", "127.0.0.1", KEY, node.port)
    root = Owner(uid=0, gid=0, home="/", cwd="/")
    environment = {"PATH": os.environ["PATH"]}
    data = os.urandom(5 << 20)
    ended = endpoint.run(["sha256sum"], root, environment, waiting.bound(), io.BytesIO(data))
    assert (ended.code, ended.stdout.split()[0].decode()) == (0, hashlib.sha256(data).hexdigest())
    assert endpoint.run(["head", "-c", "10"], root, environment, waiting.bound(), io.BytesIO(data)).stdout == data[:10]
    with pytest.raises(AgentError, match="wrote more than"):
        endpoint.run(["yes"], root, environment, waiting.bound())


def test_rsh_relays_and_passes_the_exit_code(node: NodeProcess) -> None:
    data = random.Random(2).randbytes(3 << 20)
    said = node.rsh("-x", "-l", "nobody", "t-0", "cat;", "echo", '"$GREETING"', ">&2;", "exit", "9", data=data)
    assert (said.stdout, said.stderr, said.returncode) == (data, b"a b  c\n", 9)
    assert node.rsh("127.0.0.1", "-n", "cat; kill -15 $$").returncode == 128 + 15


@as_root
def test_rsh_says_what_is_wrong_in_one_line(node: NodeProcess) -> None:
    assert node.rsh("t-1", "true").stderr == b"wherry-rsh: no node t-1 in this job\n"
    environment = {"WHERRY_JOB": node.job(port=1)}
    dead = subprocess.run(node.agent("t-0", "true"), env=environment, capture_output=True, timeout=waiting.bound())
    assert dead.returncode == 255 and dead.stderr.startswith(b"wherry-rsh: cannot reach node t-0 at 127.0.0.1:1: ")
    environment = {"WHERRY_JOB": node.job(cwd="/not/there")}
    dead = subprocess.run(node.agent("t-0", "true"), env=environment, capture_output=True, timeout=waiting.bound())
    assert dead.returncode == 255 and dead.stderr.startswith(b"wherry-rsh: node t-0: cannot enter the directory /not")
    none = subprocess.run(node.agent("t-0", "true"), env={}, capture_output=True, timeout=waiting.bound())
    assert none.returncode == 255 and none.stderr.startswith(b"wherry-rsh: WHERRY_JOB is not set")


@as_root
def test_rsh_names_the_node_that_was_lost(programs: Path, tmp_path: Path) -> None:
    with node_process(programs, tmp_path) as node:
        running = subprocess.Popen(
            node.agent("-n", "t-0", "sleep 300"), env={"WHERRY_JOB": node.job()}, stderr=subprocess.PIPE
        )
        waiting.until(lambda: names(node.pid), "the start of the command")
        node.unshare.kill()
        said = running.communicate(timeout=waiting.bound())[1]
        assert running.returncode == 255
        assert said == f"wherry-rsh: lost the connection to node t-0 (127.0.0.1:{node.port})\n".encode()


@as_root
def test_rsh_without_a_standard_input_or_output_of_its_own(node: NodeProcess) -> None:
    """A launcher may close them; the connection to the node must not take their numbers."""
    environment = {"WHERRY_JOB": node.job()}
    words = ["sh", "-c", 'exec "$@" <&- >&-', "sh", *node.agent("t-0", "echo out; cat; echo err >&2; exit 7")]
    done = subprocess.run(words, env=environment, stderr=subprocess.PIPE, timeout=waiting.bound())
    assert (done.returncode, done.stderr) == (7, b"err\n")


@as_root
def test_rsh_whose_reader_has_gone_still_passes_the_exit_code(node: NodeProcess) -> None:
    running = subprocess.Popen(
        node.agent("-n", "t-0", "echo one; sleep 0.3; echo two; echo err >&2; exit 7"),
        env={"WHERRY_JOB": node.job()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdout and running.stderr
    with running:
        running.stdout.close()
        assert (running.stderr.read(), running.wait(waiting.bound())) == (b"err\n", 7)
