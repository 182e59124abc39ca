"""`wherry exec`, `wherry cp` and pins on real containers."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance, eventually, real_instance

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")


@pytest.fixture(scope="module")
def wherry() -> Iterator[RealInstance]:
    """A cluster of two nodes."""
    with real_instance("texc", WHERRY_FAULTS="1") as created:
        created.json("up", created.file("two.yaml", "name: two\nnodes: 2\ncpus: 0.5\nmemory: 128MiB\n"))
        yield created


def other(host: str) -> str:
    return {"a": "b", "b": "a"}[host[0]] + host[1]


def jobs(wherry: RealInstance) -> list[str]:
    return [job["argv"][0] for job in wherry.json("job", "list")["jobs"]]


@pytest.mark.smoke
def test_a_program_has_its_streams_words_and_code(wherry: RealInstance) -> None:
    done = wherry("exec", "two-1", "--", "sh", "-c", 'hostname; echo "$1|$PWD" >&2; exit 7', "x", "a  *\n;b")
    assert (done.returncode, done.stdout) == (7, "two-1\n")
    assert done.stderr == f"a  *\n;b|{wherry.directory}\n"
    assert jobs(wherry) == [], "nothing is kept of it"
    fed = wherry.start("exec", "two-0", "--", "sort", stdin=subprocess.PIPE)
    assert fed.communicate("b\na\n", timeout=60)[0] == "a\nb\n"
    assert wherry("exec", "two-0", "--wdir", "/usr", "--", "pwd").stdout == "/usr\n"
    killed = wherry("exec", "two-0", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137


def test_what_cannot_run_is_refused(wherry: RealInstance) -> None:
    for words, code, said in (
        (("two-9", "--", "ls"), 3, "two-9"),
        (("two-0",), 2, "no program"),
        (("two-0", "--wdir", "/nowhere", "--", "ls"), 3, "/nowhere"),
        (("two-0", "--", "no-such-program"), 255, "no-such-program"),
    ):
        done = wherry("exec", *words)
        assert done.returncode == code and said in done.stderr, done


def test_ctrl_c_ends_it_and_what_it_left(wherry: RealInstance) -> None:
    running = wherry.start("exec", "two-0", "--", "sh", "-c", "sleep 1001 & echo began; sleep 1001")
    assert running.stdout and running.stdout.readline() == "began\n"
    assert "sh" in jobs(wherry)
    refused = wherry("down", "two")
    assert refused.returncode == 5 and "jobs run on" in refused.stderr
    running.terminate()
    assert running.wait(60) == 143
    assert "1001" not in wherry("exec", "two-0", "--", "ps", "-eo", "args").stdout.replace("ps -eo", "")


@pytest.mark.smoke
def test_a_program_goes_along_when_its_node_moves(wherry: RealInstance) -> None:
    script = "read word; i=0; while [ $i -lt 60 ]; do echo $i $word; i=$((i+1)); sleep 0.1; done; hostname"
    running = wherry.start("exec", "two-0", "--", "sh", "-c", script, stdin=subprocess.PIPE)
    assert running.stdin and running.stdout
    running.stdin.write("go\n")
    running.stdin.flush()
    assert running.stdout.readline() == "0 go\n"
    assert wherry.move("two-0", other(wherry.hosts_of("two")["two-0"]))["phase"] == "done"
    out = running.communicate(timeout=60)[0].splitlines()
    assert running.returncode == 0 and out == [*(f"{i} go" for i in range(1, 60)), "two-0"]


def test_a_program_that_begins_during_a_move_waits_while_the_node_stands(wherry: RealInstance) -> None:
    target = other(wherry.hosts_of("two")["two-1"])
    with wherry.held_move("two-1", target, "freeze"):
        client = wherry.start("exec", "two-1", "--", "sh", "-c", "hostname; date +%s.%N")
        time.sleep(1)  # it waits now, or comes later: either is right
        assert client.poll() is None
    out, err = client.communicate(timeout=SECONDS)
    assert client.returncode == 0 and out.startswith("two-1\n"), (out, err)
    assert eventually(lambda: wherry.hosts_of("two")["two-1"], target) == target
    (*_, move) = wherry.json("node", "show", "two-1")["moves"]
    stood = ("prepare", "turn", "rounds", "freeze", "transfer", "restore", "commit")
    thawed = move["created"] + sum(move["phases"].get(name, 0) for name in stood)
    assert float(out.split()[1]) > thawed - 0.1, "it began when the node went on"


def test_a_terminal(wherry: RealInstance) -> None:
    words = [*wherry.command, "exec", "two-1", "--", "sh", "-c", "tty; stty size; read word; echo got $word; sleep 99"]
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    client = subprocess.Popen(
        words, cwd=wherry.directory, env=wherry.environment, stdin=slave, stdout=slave, stderr=slave
    )
    try:
        assert "/dev/pts/" in printed(master, "33 77")
        os.write(master, b"word\n")
        printed(master, "got word")
        assert wherry.move("two-1", other(wherry.hosts_of("two")["two-1"]))["phase"] == "done"
        os.write(master, b"\x03")
        assert client.wait(60) == 130
        assert "max=256" in wherry("exec", "two-1", "--", "grep", "devpts", "/proc/mounts").stdout
        assert termios.tcgetattr(slave)[3] & termios.ECHO, "the terminal is as before"
    finally:
        client.kill()
        client.wait()
        os.close(slave)
        os.close(master)


def printed(master: int, part: str) -> str:
    """What a terminal shows until that has `part`."""
    shown, deadline = "", time.monotonic() + 60
    while part not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([master], [], [], 0.2)[0]:
            shown += os.read(master, 65536).decode()
    return shown


def test_files_are_copied_both_ways(wherry: RealInstance, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below").chmod(0o700)
    (tree / "program").write_text("#!/bin/sh\n")
    (tree / "program").chmod(0o755)
    (tree / "below" / "data").write_bytes(os.urandom(3_000_000))
    (tree / "link").symlink_to("/etc/passwd")
    assert wherry.json("cp", str(tree), "two-0:/tmp/copy") == {"schema": "wherry/cp/1", "files": 2, "bytes": 3_000_010}
    assert wherry("cp", "two-0:/tmp/copy", str(tmp_path / "back")).returncode == 0
    back = tmp_path / "back"
    assert (back / "below" / "data").read_bytes() == (tree / "below" / "data").read_bytes()
    assert (back / "below").stat().st_mode & 0o777 == 0o700
    assert (back / "program").stat().st_mode & 0o777 == 0o755 and os.readlink(back / "link") == "/etc/passwd"
    assert wherry("cp", str(tree / "program"), "two-0:/tmp").returncode == 0, "into a directory that is there"
    assert wherry("exec", "two-0", "--", "ls", "/tmp/program").returncode == 0
    assert wherry("cp", "two-0:/tmp/program", str(tmp_path)).returncode == 0
    assert (tmp_path / "program").read_text() == "#!/bin/sh\n"


def test_what_cannot_be_copied_says_why(wherry: RealInstance, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for words, code, said in (
        ((str(file), "two-0:/no/such/place"), 1, "No such file"),
        (("two-0:/no-such-file", str(tmp_path)), 1, "No such file"),
        ((str(tmp_path / "absent"), "two-0:/tmp"), 3, "absent"),
        ((str(file), str(file)), 2, "neither"),
        (("two-0:/", str(tmp_path)), 2, "no name"),
        (("/sys/kernel/uevent_seqnum", "two-0:/tmp"), 1, "unexpected end of data"),  # shorter than it says
        (("two-0:/etc/passwd", "/proc/self/copy"), 1, "copy was not written"),
        (("two-0:/etc/passwd", str(tmp_path / "no" / "place")), 3, "no"),
    ):
        done = wherry("cp", *words)
        assert done.returncode == code and said in done.stderr, done
    assert jobs(wherry) == [], "nothing of them goes on"


def test_pinned_nodes_run_on_their_cpus_wherever_they_are(wherry: RealInstance) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one CPU")
    one = "kind: container\nnodes: 1\ncpus: 0.25\nmemory: 64MiB\nsites: [{site}]\npin: {pin}\n"
    text = one.format(site="a", pin="{cpus: 0, memory: 0}")
    up = wherry("up", wherry.file("pinned.yaml", f"name: pinned\n{text}"))
    assert up.returncode == 0, up.stderr
    shown = "grep -E 's_allowed_list' /proc/self/status"

    def allowed(node: str) -> list[str]:
        return [line.split()[1] for line in wherry("exec", node, "--", "sh", "-c", shown).stdout.splitlines()]

    running = wherry.start(
        "exec", "pinned-0", "--", "sh", "-c", "while :; do grep Cpus_allowed_list /proc/self/status; sleep 0.2; done"
    )
    try:
        assert allowed("pinned-0") == ["0", "0"]
        assert "CPUs 0 of" in wherry("node", "show", "pinned-0").stdout
        file = wherry.file(
            "taking.yaml", f"name: taking\n{one.format(site='b', pin='{cpus: 0}').replace('nodes: 1', 'nodes: 2')}"
        )
        assert wherry("up", file).returncode == 0
        assert wherry.move("pinned-0", "b1")["pin"] == {"cpus": [1], "memory": 0}
        assert allowed("pinned-0") == ["1", "0"] and allowed("taking-0") == ["0", "0"]
        third = wherry.file(
            "third.yaml", "name: third\nnodes: 1\ncpus: 0.25\nmemory: 64MiB\npin: {cpus: 0}\nhosts: [a1]\n"
        )
        assert wherry("up", third).returncode == 0
        refused = wherry("move", "third-0", "--to", "b1")
        assert refused.returncode == 4 and "to pin" in refused.stderr, refused.stderr
    finally:
        running.terminate()
        last = [line for line in running.communicate(timeout=60)[0].splitlines() if line]
        for name in ("pinned", "taking", "third"):
            wherry("down", name, "--yes")
    assert last[-1].split()[1] == "1", "a program that ran before the move too"
