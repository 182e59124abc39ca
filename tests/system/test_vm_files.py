"""Virtual machines see their user's directories, and have programs, terminals, copies and pins as containers do."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import RealInstance, eventually, missing_for_vms, real_instance

from names import own_name
from wherry.fabric import file_server

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.timeout(900),
]
IMAGE = own_name("tvf")
USER = 61234
PROGRAMS = ("qemu-system-x86_64", "libvirtd", "virsh", "busybox", "sqfstar")


@pytest.fixture(scope="module")
def two() -> Iterator[RealInstance]:
    """Two VMs of a user with one directory; `closed` in it is root's."""
    if reason := missing_for_vms(PROGRAMS) or file_server.obstacle():
        pytest.skip(reason)
    with real_instance("tvf", SUDO_UID=str(USER), SUDO_GID=str(USER)) as created:
        built = created.build_image(IMAGE)
        if built.returncode and "apt" in built.stderr:
            pytest.skip(f"no kernel for the image: {built.stderr}")
        assert built.returncode == 0, built.stderr
        try:
            os.chown(created.directory, USER, USER)
            closed = created.directory / "closed"
            closed.mkdir(mode=0o700)
            (closed / "secret").write_text("secret")
            text = f"kind: vm\nname: two\nnodes: 2\ncpus: 1\nmemory: 192MiB\nimage: {IMAGE}\npin: cores\n"
            up = created("up", created.file("two.yaml", text))
            if up.returncode == 4:
                pytest.skip(up.stderr)
            assert up.returncode == 0, up.stderr
            yield created
        finally:
            created("image", "remove", IMAGE)


def other(host: str) -> str:
    return {"a": "b", "b": "a"}[host[0]] + host[1]


def movable(two: RealInstance) -> None:
    refused = two("move", "two-1", "--to", other(two.hosts_of("two")["two-1"]), "--dry-run")
    if refused.returncode == 4 and "QEMU" in refused.stderr:
        pytest.skip(refused.stderr)


def test_what_ranks_write_is_the_users(two: RealInstance) -> None:
    program = two.directory / "rank"
    program.write_text("#!/bin/sh\nhostname > rank-$PMI_RANK; cat theirs\n")
    program.chmod(0o755)
    (two.directory / "theirs").write_text("from outside\n")
    before = program.stat()
    done = two("run", "two", "-n", "2", "--mpi", "mpich", "--", "./rank")
    assert (done.returncode, done.stdout) == (0, "from outside\n" * 2), done.stderr
    for rank in range(2):
        written = two.directory / f"rank-{rank}"
        assert written.read_text() == f"two-{rank}\n" and written.stat().st_uid == USER
    assert (program.stat().st_ino, program.stat().st_mtime) == (before.st_ino, before.st_mtime), "it was not copied"


def test_it_is_served_with_the_users_rights_alone(two: RealInstance) -> None:
    for words in (("cat", "closed/secret"), ("touch", "closed/new"), ("ls", "closed")):
        done = two("exec", "two-0", "--", *words)
        assert done.returncode == 1 and "denied" in done.stderr, done
    assert (two.directory / "closed" / "secret").exists()
    mounted = two("exec", "two-0", "--", "grep", "nfs4", "/proc/mounts").stdout
    assert mounted.count("nfs4") == 1 and str(two.directory) in mounted and "nosuid,nodev" in mounted


def test_writing_goes_on_when_the_machine_moves_and_when_the_server_ends(two: RealInstance) -> None:
    movable(two)
    script = "exec 5>open; i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i >&5 || exit 1; sleep 0.2; done; echo $i"
    running = two.start("exec", "two-1", "--", "sh", "-c", script)
    log = two.directory / "open"

    def grows() -> bool:
        before = log.read_text() if log.exists() else ""
        time.sleep(1)
        return log.exists() and len(log.read_text()) > len(before)

    eventually(grows, True)
    assert two.move("two-1", other(two.hosts_of("two")["two-1"]))["phase"] == "done"
    eventually(grows, True)
    os.kill(int((two.instance.run / "files" / "two" / "pid").read_text().split()[0]), signal.SIGKILL)
    eventually(grows, True, 150)
    (two.directory / "stop").touch()
    last = running.communicate(timeout=60)[0].strip()
    assert running.returncode == 0 and log.read_text().split() == [str(i) for i in range(1, int(last) + 1)]


def test_a_terminal_and_copies(two: RealInstance, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    words = [*two.command, "exec", "two-0", "--", "sh", "-c", "tty; read word; echo got $word; exit 4"]
    client = subprocess.Popen(words, cwd=two.directory, env=two.environment, stdin=slave, stdout=slave, stderr=slave)
    try:
        assert "/dev/pts/" in printed(master, "/dev/pts/")
        os.write(master, b"word\n")
        printed(master, "got word")
        assert client.wait(60) == 4
    finally:
        client.kill()
        os.close(slave)
        os.close(master)
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    assert two("cp", str(tmp_path / "file"), "two-0:/tmp/there").returncode == 0
    assert two("cp", "two-0:/tmp/there", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_bytes() == b"x" * 100_000
    assert two("cp", "two-1:/tmp/there", str(tmp_path / "none")).returncode == 1, "each machine has its own /tmp"


def printed(master: int, part: str) -> str:
    shown, deadline = "", time.monotonic() + 60
    while part not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([master], [], [], 0.2)[0]:
            shown += os.read(master, 65536).decode()
    return shown


def test_a_pinned_machines_processors_are_bound_wherever_it_is(two: RealInstance) -> None:
    movable(two)

    def bound(node: str, host: str) -> set[str]:
        (qemu,) = [pid for pid, words in two.processes().items() if f"guest={node}," in words and is_at(pid, host)]
        threads = Path(f"/proc/{qemu}/task").glob("*")
        return {str(sorted(os.sched_getaffinity(int(thread.name)))) for thread in threads}

    def is_at(pid: int, host: str) -> bool:
        return f"/{host}/" in Path(f"/proc/{pid}/cgroup").read_text()

    host = two.hosts_of("two")["two-0"]
    cpus = two.json("node", "show", "two-0")["node"]["pin"]["cpus"]
    assert len(cpus) == 1 and bound("two-0", host) == {str(cpus)}
    target = other(host)
    pin = two.move("two-0", target)["pin"]
    assert bound("two-0", target) == {str(pin["cpus"])}
