"""`wherry down` while jobs run: its questions, and the messages of the waiting `wherry run`."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator

import pytest
from realworld import SECONDS, RealInstance, eventually, real_instance

from wherry.base.errors import Code

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

PROGRAM = ("run", "two", "-n", "2", "--", "/bin/sh", "-c", "echo begun; exec sleep 600")


@pytest.fixture
def alone() -> Iterator[RealInstance]:
    """An instance with nothing but two nodes."""
    with real_instance("tdwn") as created:
        created.up("two", 2)
        yield created


def waiting(two: RealInstance) -> subprocess.Popen[str]:
    """A `wherry run` whose ranks run."""
    client = two.start(*PROGRAM)
    assert client.stdout and client.stdout.readline() == "begun\n"
    return client


def end(client: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = client.communicate(timeout=SECONDS)
    return client.returncode, said


def answered(two: RealInstance, answer: str, *words: str) -> str:
    """The output of a command on a terminal on which a question is answered."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*two.command, *words], cwd=two.directory, env=two.environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as client:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        shown = b""
        try:
            while more := os.read(ours, 4096):
                shown += more
        except OSError:  # the terminal's other side is closed
            pass
        client.wait(SECONDS)
    os.close(ours)
    return shown.decode()


def test_down_asks_before_it_ends_jobs(four: RealInstance) -> None:
    four.up("two", 2)
    client = waiting(four)
    (job,) = four.json("job", "list", "two")["jobs"]
    refused = four("down", "two")
    assert refused.returncode == Code.WRONG_STATE.exit_code and job["id"] in refused.stderr
    assert "wherry down two --yes" in refused.stderr
    shown = answered(four, "n", "down", "two")
    assert (
        job["id"] in shown and "End this job and remove cluster two? [y/N]" in shown and "nothing was removed" in shown
    )
    assert client.poll() is None and four.json("job", "list", "two")["jobs"][0]["state"] == "running"
    assert "two is removed" in answered(four, "y", "down", "two")
    code, said = end(client)
    assert code == Code.TAKEN_DOWN.exit_code and "its cluster two was taken down by root" in said, said
    late = four("logs", "two", "--job", job["id"])
    assert late.returncode != 0
    show = four("job", "show", job["id"])
    assert show.returncode == Code.TAKEN_DOWN.exit_code and "taken down by root" in show.stderr


@pytest.mark.parametrize("killed", [False, True], ids=["daemon runs", "daemon was killed"])
def test_down_all_asks_before_it_ends_jobs(alone: RealInstance, killed: bool) -> None:
    """Without a daemon no job can be listed, and everything is removed."""
    client = waiting(alone)
    if killed:
        alone.kill_daemon()
    else:
        (job,) = alone.json("job", "list", "two")["jobs"]
        refused = alone("down", "--all")
        assert refused.returncode == Code.WRONG_STATE.exit_code and job["id"] in refused.stderr
        assert "wherry down --all --yes" in refused.stderr
        assert "nothing was removed" in answered(alone, "", "down", "--all")
        assert client.poll() is None
    assert eventually(lambda: alone("down", "--all", "--yes").returncode, 0) == 0
    code, said = end(client)
    assert code == Code.TAKEN_DOWN.exit_code and "its clusters were taken down" in said, said
    assert "wherry down --all" in said
