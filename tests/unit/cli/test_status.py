"""`wherry status --watch`: in place on a terminal, once for each change elsewhere, until Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import command_line
import pytest
from rest_service import CLUSTER, Here, Service, running

from wherry.client import Client

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
