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
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance, eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")


def other(host: str) -> str:
    return {"a": "b", "b": "a"}[host[0]] + host[1]


def programs(four: RealInstance) -> list[str]:
    """Those that run."""
    return [job["argv"][0] for job in four.json("job", "list")["jobs"] if job["state"] == "running"]


@pytest.mark.smoke
def test_a_program_has_its_streams_words_and_code(four: RealInstance) -> None:
    before = four.json("job", "list")["jobs"]
    done = four("exec", "four-1", "--", "sh", "-c", 'hostname; echo "$1|$PWD" >&2; exit 7', "x", "a  *\n;b")
    assert (done.returncode, done.stdout) == (7, "four-1\n")
    assert done.stderr == f"a  *\n;b|{four.directory}\n"
    assert four.json("job", "list")["jobs"] == before, "nothing is kept of it"
    fed = four.start("exec", "four-0", "--", "sort", stdin=subprocess.PIPE)
    assert fed.communicate("b\na\n", timeout=60)[0] == "a\nb\n"
    assert four("exec", "four-0", "--wdir", "/usr", "--", "pwd").stdout == "/usr\n"
    killed = four("exec", "four-0", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 137
    line = four("ssh", "four-0", "--", "echo $((6 * 7)); exit 4")
    assert (line.returncode, line.stdout) == (4, "42\n"), "with a shell that reads the line"


def test_what_cannot_run_is_refused(four: RealInstance) -> None:
    for words, code, said in (
        (("four-9", "--", "ls"), 3, "four-9"),
        (("four-0",), 2, "no program"),
        (("four-0", "--wdir", "/nowhere", "--", "ls"), 3, "/nowhere"),
        (("four-0", "--", "no-such-program"), 255, "no-such-program"),
    ):
        done = four("exec", *words)
        assert done.returncode == code and said in done.stderr, done


def test_ctrl_c_ends_it_and_what_it_left(four: RealInstance) -> None:
    running = four.start("exec", "four-0", "--", "sh", "-c", "sleep 1001 & echo began; sleep 1001")
    assert running.stdout and running.stdout.readline() == "began\n"
    assert "sh" in programs(four)
    refused = four("down", "four")
    assert refused.returncode == 5 and "jobs run on" in refused.stderr
    running.terminate()
    assert running.wait(60) == 143
    assert "1001" not in four("exec", "four-0", "--", "ps", "-eo", "args").stdout.replace("ps -eo", "")


@pytest.mark.smoke
def test_a_program_goes_along_when_its_node_moves(four: RealInstance) -> None:
    stop = four.directory / "stop-exec"
    script = "read word; i=0; while [ ! -e $1 ]; do echo $i $word; i=$((i+1)); sleep 0.1; done; hostname"
    running = four.start("exec", "four-0", "--", "sh", "-c", script, "sh", str(stop), stdin=subprocess.PIPE)
    assert running.stdin and running.stdout
    running.stdin.write("go\n")
    running.stdin.flush()
    assert running.stdout.readline() == "0 go\n"
    assert four.move("four-0", other(four.hosts_of("four")["four-0"]))["phase"] == "done"
    stop.touch()
    *lines, last = running.communicate(timeout=SECONDS)[0].splitlines()
    assert running.returncode == 0 and last == "four-0" and lines == [f"{i} go" for i in range(1, len(lines) + 1)]


def test_a_program_that_begins_during_a_move_waits_while_the_node_stands(four: RealInstance) -> None:
    target = other(four.hosts_of("four")["four-1"])
    with four.held_move("four-1", target, "freeze"):
        client = four.start("exec", "four-1", "--", "sh", "-c", "hostname; date +%s.%N")
        time.sleep(1)  # it waits now, or comes later: either is right
        assert client.poll() is None
    out, err = client.communicate(timeout=SECONDS)
    assert client.returncode == 0 and out.startswith("four-1\n"), (out, err)
    assert eventually(lambda: four.hosts_of("four")["four-1"], target) == target
    (*_, move) = four.json("node", "show", "four-1")["moves"]
    stood = ("prepare", "link wait", "rounds", "freeze", "transfer", "restore", "commit")
    thawed = move["created"] + sum(move["phases"].get(name, 0) for name in stood)
    assert float(out.split()[1]) > thawed - 0.1, "it began when the node continued"


def test_a_terminal(four: RealInstance) -> None:
    words = [*four.command, "exec", "four-1", "--", "sh", "-c", "tty; stty size; read word; echo got $word; sleep 99"]
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    client = subprocess.Popen(words, cwd=four.directory, env=four.environment, stdin=slave, stdout=slave, stderr=slave)
    try:
        assert "/dev/pts/" in printed(master, "33 77")
        os.write(master, b"word\n")
        printed(master, "got word")
        assert four.move("four-1", other(four.hosts_of("four")["four-1"]))["phase"] == "done"
        os.write(master, b"\x03")
        assert client.wait(60) == 130
        assert "max=256" in four("exec", "four-1", "--", "grep", "devpts", "/proc/mounts").stdout
        assert termios.tcgetattr(slave)[3] & termios.ECHO, "the terminal is as before"
    finally:
        client.kill()
        client.wait()
        os.close(slave)
        os.close(master)


def printed(master: int, part: str) -> str:
    """The output of a terminal until that has `part`."""
    shown, deadline = "", time.monotonic() + 60
    while part not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([master], [], [], 0.2)[0]:
            shown += os.read(master, 65536).decode()
    return shown


def test_files_are_copied_both_ways(four: RealInstance, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below").chmod(0o700)
    (tree / "program").write_text("#!/bin/sh\n")
    (tree / "program").chmod(0o755)
    (tree / "below" / "data").write_bytes(os.urandom(3_000_000))
    (tree / "link").symlink_to("/etc/passwd")
    assert four.json("cp", str(tree), "four-0:/tmp/copy") == {"schema": "wherry/cp/1", "files": 2, "bytes": 3_000_010}
    assert four("cp", "four-0:/tmp/copy", str(tmp_path / "back")).returncode == 0
    back = tmp_path / "back"
    assert (back / "below" / "data").read_bytes() == (tree / "below" / "data").read_bytes()
    assert (back / "below").stat().st_mode & 0o777 == 0o700
    assert (back / "program").stat().st_mode & 0o777 == 0o755 and os.readlink(back / "link") == "/etc/passwd"
    assert four("cp", str(tree / "program"), "four-0:/tmp").returncode == 0, "into a directory that is there"
    assert four("exec", "four-0", "--", "ls", "/tmp/program").returncode == 0
    assert four("cp", "four-0:/tmp/program", str(tmp_path)).returncode == 0
    assert (tmp_path / "program").read_text() == "#!/bin/sh\n"


def test_what_cannot_be_copied_says_why(four: RealInstance, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for words, code, said in (
        ((str(file), "four-0:/no/such/place"), 1, "No such file"),
        (("four-0:/no-such-file", str(tmp_path)), 1, "No such file"),
        ((str(tmp_path / "absent"), "four-0:/tmp"), 3, "absent"),
        ((str(file), str(file)), 2, "neither"),
        (("four-0:/", str(tmp_path)), 2, "no name"),
        (("/sys/kernel/uevent_seqnum", "four-0:/tmp"), 1, "unexpected end of data"),  # shorter than its size
        (("four-0:/etc/passwd", "/proc/self/copy"), 1, "copy was not written"),
        (("four-0:/etc/passwd", str(tmp_path / "no" / "place")), 3, "no"),
    ):
        done = four("cp", *words)
        assert done.returncode == code and said in done.stderr, done
    assert programs(four) == [], "none of their programs is left"


def test_pinned_nodes_run_on_their_cpus_wherever_they_are(four: RealInstance) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one CPU")
    one = "kind: container\nnodes: 1\ncpus: 0.25\nmemory: 64MiB\nsites: [{site}]\npin: {pin}\n"
    text = one.format(site="a", pin="{cpus: 0, memory: 0}")
    up = four("up", four.file("pinned.yaml", f"name: pinned\n{text}"))
    assert up.returncode == 0, up.stderr
    shown = "grep -E 's_allowed_list' /proc/self/status"

    def allowed(node: str) -> list[str]:
        return [line.split()[1] for line in four("exec", node, "--", "sh", "-c", shown).stdout.splitlines()]

    running = four.start(
        "exec", "pinned-0", "--", "sh", "-c", "while :; do grep Cpus_allowed_list /proc/self/status; sleep 0.2; done"
    )
    try:
        assert allowed("pinned-0") == ["0", "0"]
        assert "CPUs 0 of" in four("node", "show", "pinned-0").stdout
        file = four.file(
            "taking.yaml", f"name: taking\n{one.format(site='b', pin='{cpus: 0}').replace('nodes: 1', 'nodes: 2')}"
        )
        assert four("up", file).returncode == 0
        assert four.move("pinned-0", "b1")["pin"] == {"cpus": [1], "memory": 0}
        assert allowed("pinned-0") == ["1", "0"] and allowed("taking-0") == ["0", "0"]
        third = four.file(
            "third.yaml", "name: third\nnodes: 1\ncpus: 0.25\nmemory: 64MiB\npin: {cpus: 0}\nhosts: [a1]\n"
        )
        assert four("up", third).returncode == 0
        refused = four("move", "third-0", "--to", "b1")
        assert refused.returncode == 4 and "to pin" in refused.stderr, refused.stderr
    finally:
        running.terminate()
        last = [line for line in running.communicate(timeout=60)[0].splitlines() if line]
    assert last[-1].split()[1] == "1", "a program that ran before the move too"
