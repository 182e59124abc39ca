"""Output to a terminal beside text: colors of states and errors, and a line that is replaced in place."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import command_line
import pytest
from rest_service import CLUSTER, Service

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
