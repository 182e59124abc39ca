"""Runs the tutorial's commands in order and compares their output with that in the text. In a ```console block a line
that begins with `$ ` is a command, the lines below are its output, abridged by `...`, and `[exit code N]` is an exit
code other than 0. Numbers, times, identifiers and spaces may differ."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from names import own_name

TOP = Path(__file__).resolve().parents[2]
TUTORIAL = TOP / "docs" / "tutorial.md"
INSTANCE = own_name("ttut")
SECONDS = 400
"""Time limit of one command on a loaded machine."""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(not shutil.which("mpicc"), reason="there is no mpicc for the tutorial's program"),
    pytest.mark.timeout(1200),
]


@dataclass
class Step:
    """One command of the text with its expected output and exit code."""

    line: int
    command: str
    shown: list[str]
    code: int = 0


def steps(text: str) -> list[Step]:
    found: list[Step] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = line == "```console"
        elif inside and line.startswith("$ "):
            found.append(Step(number, line.removeprefix("$ "), []))
        elif inside and (code := re.fullmatch(r"\[exit code (\d+)\]", line)):
            found[-1].code = int(code[1])
        elif inside:
            found[-1].shown.append(line)
    return found


VARIES = re.compile(
    r"""
    (?P<any> \.\.\.)                                        # lines or words left out
    | (?P<word> job-\w+ | (?:pre-copy|stop)(?=,) | \((?:assumed|the\ last)[^)]*\) | (?:openmpi|mpich)\ [\d.]+)
    | (?P<exact> \d\.\d{12})                                # what the program computes is the same everywhere
    | (?P<rounds> \d\ rounds?)                              # so many as the kernel and the program let it be
    | (?P<number> (?<![A-Za-z\d-])\d(?:[\d.:/]|-\d|e-\d)*[smhd]?(?!\w))
    | (?P<unit> \b(?:us|ms|s|min|KiB|MiB|GiB)\b)
    | (?P<space> \s+)
    """,
    re.VERBOSE,
)
STANDS_FOR = {
    "any": ".*",
    "word": ".+",
    "rounds": r"\d rounds?",
    "number": r"[\d.:/e-]+[smhd]?",
    "unit": r"[a-zA-Z]+",
    "space": r"\s+",
}


def pattern(shown: str) -> str:
    """A line of expected output as a regular expression."""
    result, end = "", 0
    for found in VARIES.finditer(shown):
        result += re.escape(shown[end : found.start()])
        result += STANDS_FOR.get(str(found.lastgroup)) or re.escape(found[0])
        end = found.end()
    return result + re.escape(shown[end:])


def missing(shown: list[str], output: str) -> str:
    """The first expected line that does not follow the earlier ones in the output; empty if all do."""
    lines = iter(output.splitlines())
    for line in shown:
        if line.strip() and line.strip() != "...":
            expected = re.compile(pattern(line.strip()))
            if not any(expected.fullmatch(real.strip()) for real in lines):
                return line
    return ""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A shell in a copy of the examples, with this checkout's commands and an instance of its own."""
    shutil.copytree(TOP / "examples", tmp_path / "examples")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    made = {**kept, "PATH": path, "PWD": str(tmp_path), "WHERRY_INSTANCE": INSTANCE}
    run("wherry down --all --yes", made)
    yield made
    assert run("wherry down --all --yes", made).returncode == 0


def run(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command],
        cwd=environment["PWD"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.smoke
def test_the_tutorial(environment: dict[str, str], request: pytest.FixtureRequest) -> None:
    """`make test` runs it up to the first move, and its end."""
    text = TUTORIAL.read_text()
    if request.config.getoption("--smoke"):
        text = text.partition("## 5.")[0] + text.partition("## 8.")[2]
        text = text.replace("pi 1000\n", "pi 20000\n")  # nobody waits for its end
    found = steps(text)
    assert len(found) > 10
    for step in found:
        done = run(step.command, environment)
        where = f"docs/tutorial.md:{step.line}: $ {step.command}"
        assert done.returncode == step.code, f"{where}\n{done.stdout}"
        absent = missing(step.shown, done.stdout)
        assert not absent, f"{where}\nshows what does not come: {absent}\n{done.stdout}"


def test_what_varies_and_what_does_not() -> None:
    real = "hello-2 moved from b1 to a1 in 1.1 s, downtime 95.2 ms, 15 KiB sent, 0 rounds."
    shown = "hello-2 moved from b1 to a1 in 620.1 ms, downtime 380.2 ms, 15.3 MiB sent, 0 rounds."
    assert re.fullmatch(pattern(shown), real)
    assert not re.fullmatch(pattern(shown), real.replace("hello-2", "hello-3"))
    assert not re.fullmatch(pattern(shown), real.replace("to a1", "to a2"))
    assert not re.fullmatch(pattern("pi = 3.141592653590"), "pi = 3.141592653591")
    assert missing(["a", "...", "b"], "a\nx\nb\n") == "" and missing(["b", "a"], "a\nb\n") == "a"
