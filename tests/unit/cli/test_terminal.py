"""Output to a terminal beside text: colors of states and errors, and a line that is replaced in place."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import command_line
import pytest
from rest_service import CLUSTER, Here, Service, running

from wherry.client import Client

GREEN, RED, YELLOW, END = "\033[32m", "\033[31m", "\033[33m", "\033[0m"


@pytest.fixture
def made(service: Service) -> Iterator[Service]:
    """The service with a cluster."""
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
    yield service


def shown(service: Service, *words: str, **environment: str) -> str:
    with command_line.on_terminal(service.place, *words, **environment) as terminal:
        while True:
            try:
                terminal.wait_for("\n")
            except AssertionError:
                return terminal.text.replace("\r\n", "\n")


def test_states_have_colors_and_columns_their_places(made: Service) -> None:
    assert f"  {GREEN}running{END}  3" in shown(made, "status")
    text = shown(made, "node", "list")
    assert f"{GREEN}running{END}" in text and "\033[1mNODE" in text
    plain = shown(made, "node", "list", NO_COLOR="1")
    assert "\033" not in plain and plain == shown(made, "node", "list", TERM="dumb")
    for escape in (GREEN, END, "\033[1m"):
        text = text.replace(escape, "")
    assert text == plain
    assert f"state      {GREEN}running{END}\n" in shown(made, "node", "show", "hello-0")
    with Client(made.place) as client:
        client.wait(client.drain("b1").id)
    assert f"{YELLOW}drained{END}" in shown(made, "host", "list")


def test_an_error_is_red_on_a_terminal_only(made: Service) -> None:
    words = ("node", "show", "none")
    assert f"{RED}error NOT_FOUND{END}: " in shown(made, *words)
    assert shown(made, *words, NO_COLOR="").startswith("error NOT_FOUND")
    child = command_line.start(made.place, *words)
    assert child.communicate()[1].startswith("error NOT_FOUND")


def test_a_move_is_one_line_on_a_terminal_and_lines_elsewhere(made: Service) -> None:
    with Client(made.place) as client:
        node = client.nodes("hello")[0]
        first, second = (host.name for host in client.hosts() if host.name != node.host)
    text = shown(made, "move", node.name, "--to", first)
    live, _, rest = text.rpartition("\r\033[K")
    assert "\n" not in live and "\r\033[K" in live and f"{node.name}: freeze" in live
    assert rest.startswith(f"{node.name} moved from") and rest.endswith(f"--to {node.host}\n")

    child = command_line.start(made.place, "move", node.name, "--to", second, stdin=subprocess.DEVNULL)
    out, err = child.communicate()
    assert child.returncode == 0 and "\033" not in out + err and f"{node.name}: freeze\n" in err


# `wherry status --watch`: in place on a terminal, once for each change elsewhere, until Ctrl-C.


_RUNNING = re.compile(r'^hello +running|"state": "running",\n +"network"', re.MULTILINE)
"""A cluster, as text or as JSON."""


@pytest.mark.parametrize("words", [("status", "--watch"), ("status", "-w", "-o", "json")], ids=" ".join)
def test_each_change_is_printed_once(service: Service, words: tuple[str, ...]) -> None:
    with Client(service.place) as client, command_line.start(service.place, *words) as child:
        assert child.stdout and child.stderr
        first = child.stdout.readline()
        client.wait(client.up(CLUSTER).id)
        lines, end = [first], "}" if "json" in words else "hello"
        while not (_RUNNING.search("".join(lines)) and lines[-1].startswith(end)):
            assert (line := child.stdout.readline()), child.stderr.read()
            lines.append(line)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    text = "".join(lines) + out
    assert child.returncode == 0 and not err and "\033" not in text
    if "json" in words:
        documents = [json.loads(f"{part}}}") for part in text.split("\n}\n") if part.strip()]
        states = [[cluster["state"] for cluster in found["clusters"]] for found in documents]
        assert states[0] == [] and states[-1] == ["running"]
        assert all(one != other for one, other in zip(documents, documents[1:], strict=False))
    else:
        assert first.startswith("No cluster is up") and text.count("No cluster is up") == 1


def test_a_terminal_is_redrawn(service: Service) -> None:
    with Client(service.place) as client, command_line.on_terminal(service.place, "status", "hello", "-w") as shown:
        assert "NOT_FOUND" in shown.wait_for("next:") and shown.process.wait(30) == 3
        client.wait(client.up(CLUSTER).id)
        with command_line.on_terminal(service.place, "status", "hello", "-w") as terminal:
            assert terminal.wait_for("No job ran").startswith("\033[H\033[J")
            job = client.run("hello", ["sleep"], 2, env={})
            assert "\033[H\033[J" in terminal.wait_for(job.id)
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.process.wait(30) == 0


def test_it_waits_for_a_daemon(tmp_path: Path) -> None:
    with command_line.start(Here("test", tmp_path), "status", "--watch") as child:
        assert child.stdout and child.stdout.readline().startswith("No cluster is up")
        with running(tmp_path) as service, Client(service.place) as client:
            client.wait(client.up(CLUSTER).id)
            while not child.stdout.readline().startswith("hello"):
                assert child.poll() is None
        assert child.stderr and "the daemon does not answer" in child.stderr.readline()
        assert "no daemon runs" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
