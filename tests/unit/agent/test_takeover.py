"""Takeovers of a host: one agent of one daemon works there at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ssh_world import setup

from wherry.agent import takeover
from wherry.base.errors import Failed, Refused
from wherry.hostlink.entrance import HostSetup

_COMMAND = [sys.executable, "-m", "wherry.agent"]


def test_agent_ends_with_its_input() -> None:
    agent = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert agent.stdin
    agent.stdin.write(b"\0\0\0\x0a" + b'{"ping":1}')
    out, err = agent.communicate(timeout=60)
    assert json.loads(out[4:])["pong"] > 0 and agent.returncode == 0, err


def test_agent_ends_when_what_it_reads_is_malformed() -> None:
    agent = subprocess.run(_COMMAND, input=b"\xff\xff\xff\xff", capture_output=True, timeout=60, check=False)
    assert b"malformed" in agent.stderr and agent.stdout == b""


class Here:
    """An instance whose directory is the test's."""

    prefix = "wherry-none"

    def __init__(self, run: Path) -> None:
        self.run = run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(takeover, "Instance", lambda _: Here(tmp_path))
    return tmp_path


def test_host_that_nobody_has_is_taken(here: Path) -> None:
    lock = takeover.take_over(setup())
    assert json.loads((here / "agent").read_text())["host"] == "h1"
    os.close(lock)


@pytest.mark.parametrize(
    ("other", "what"),
    [(setup(name="h2"), "hosts h2 and h1 are the same machine"), (setup(identity="f" * 32), "another daemon")],
)
def test_host_of_another_is_refused(here: Path, other: HostSetup, what: str) -> None:
    lock = takeover.take_over(other)
    with pytest.raises(Refused, match=what):
        takeover.take_over(setup())
    os.close(lock)
    os.close(takeover.take_over(setup()))  # nothing of it is left, so it is free


def test_host_with_another_daemons_nodes_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.close(takeover.take_over(setup(identity="f" * 32)))
    monkeypatch.setattr(takeover.named_netns, "exists", lambda name: name == "wherry-none-h1")
    with pytest.raises(Refused, match="another daemon"):
        takeover.take_over(setup())


def test_earlier_agent_is_killed(here: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from wherry.agent import takeover\n"
        "class Here: prefix = 'wherry-none'; run = Path(sys.argv[1])\n"
        "takeover.Instance = lambda _: Here\n"
        "from wherry.hostlink.entrance import HostSetup\n"
        "takeover.take_over(HostSetup.model_validate_json(sys.argv[2])); print('taken', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(here), setup().model_dump_json(), "wherry.agent"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as earlier:
        assert earlier.stdout and earlier.stdout.readline() == b"taken\n"
        os.close(takeover.take_over(setup()))
        assert earlier.wait(60) == -9


def test_process_that_is_no_agent_is_not_killed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "_ENDS", 0.1)
    with subprocess.Popen(["sleep", "60"]) as other:
        lock = takeover.take_over(setup())
        (here / "agent").write_text(json.dumps({"identity": "0" * 32, "host": "h1", "pid": other.pid}))
        with pytest.raises(Failed, match="has an agent already"):
            takeover.take_over(setup())
        assert other.poll() is None
        other.kill()
    os.close(lock)
