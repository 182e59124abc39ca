"""Shell completion: in a real bash the words, options and names appear that TAB should show; no daemon is started."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import command_line
import pytest
from rest_service import CLUSTER, Here, Service

from wherry.client import Client

_TYPED = """
set -eu
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMP_KEY=9
set +eu
$(complete -p wherry | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


def program_of(place: Here, directory: Path) -> Path:
    """A program `wherry` for an instance."""
    directory.mkdir()
    program = directory / "wherry"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command_line.words_of(place))} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def completions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of `wherry completion` for each shell."""
    top = tmp_path_factory.mktemp("completion")
    program, told = program_of(Here("test", top), top / "bin"), dict[str, str]()
    for shell in ("bash", "zsh", "fish"):
        done = subprocess.run([program, "completion", shell], capture_output=True, text=True, check=True, timeout=60)
        told[shell] = done.stdout
    return told


@pytest.fixture
def programs(tmp_path: Path, completions: dict[str, str]) -> Path:
    """A directory with a program `wherry` for the instance of the test, and its completion for each shell."""
    directory = tmp_path / "bin"
    program_of(Here("test", tmp_path), directory)
    for shell, text in completions.items():
        (directory / f"complete.{shell}").write_text(text)
    return directory


def typed(programs: Path, *words: str) -> list[str]:
    """Completions by bash for the last of these words."""
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    command = ["bash", "--norc", "-c", _TYPED, "bash", str(programs / "complete.bash"), "wherry", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [word.strip() for word in done.stdout.splitlines() if word.strip()]


def test_words_and_names_in_bash(service: Service, programs: Path) -> None:
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
        job = client.run("hello", ["sleep"], 2, env={}).id
        hosts = [host.name for host in client.hosts()]
    nodes = ["hello-0", "hello-1", "hello-2"]
    assert {"status", "move", "completion"} <= set(typed(programs, ""))
    assert typed(programs, "mov") == ["move"]
    assert set(typed(programs, "host", "")) >= {"list", "show", "drain", "restore", "lost"}
    assert "--watch" in typed(programs, "status", "--w")
    assert typed(programs, "status", "") == typed(programs, "down", "he") == typed(programs, "run", "h") == ["hello"]
    assert typed(programs, "move", "") == typed(programs, "logs", "--node", "") == nodes
    assert typed(programs, "move", "hello-1", "--to", "") == typed(programs, "host", "drain", "") == hosts
    assert typed(programs, "move", "hello-1", "--to", "b") == ["b1"]
    assert typed(programs, "job", "show", "") == typed(programs, "logs", "hello", "--job", "") == [job]
    assert typed(programs, "completion", "") == ["bash", "zsh", "fish"]


def test_a_key_in_an_interactive_bash(service: Service, programs: Path) -> None:
    with Client(service.place) as client:
        client.wait(client.up(CLUSTER).id)
    with command_line.program_on_terminal(
        ["bash", "--norc", "-i"], PATH=f"{programs}:{os.environ['PATH']}", PS1="ready> "
    ) as bash:
        bash.wait_for("ready> ")
        bash.type(f"source {programs}/complete.bash; echo 'loa''ded'\n")
        bash.wait_for("loaded")
        bash.type("wherry node show hel\t1\n")
        assert "hello-1" in bash.wait_for("limits     ")


def test_without_a_daemon_there_are_no_names_and_none_is_started(programs: Path, tmp_path: Path) -> None:
    assert typed(programs, "status", "") == typed(programs, "move", "x", "--to", "") == []
    assert not (tmp_path / "run").exists() and not (tmp_path / "state").exists()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_it(programs: Path, shell: str) -> None:
    script = programs / f"complete.{shell}"
    assert "wherry" in script.read_text() and "__complete" in script.read_text()
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell}")
    assert subprocess.run([shell, "-n", script], capture_output=True, timeout=60).returncode == 0
