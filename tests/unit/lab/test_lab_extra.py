"""The lab's libraries are an extra: everyday commands do not import them, the lab's commands say how to install
them."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARIES = "jinja2 matplotlib numpy scipy weasyprint"
EVERY_DAY = (
    "from wherry.cli import cluster, job, move, balance, host, node; import wherry.client, wherry.service.daemon"
)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_everyday_commands_import_no_lab_library() -> None:
    code = f"import sys; {EVERY_DAY}; print(*sorted(set({LIBRARIES.split()!r}) & set(sys.modules)))"
    done = python(code)
    assert done.returncode == 0 and done.stdout == "\n", done.stdout + done.stderr


@pytest.mark.parametrize("words", [["study", "list"], ["bench", "list"], ["bench", "run", "move"], ["demo"]])
def test_lab_commands_without_libraries_say_how_to_install_them(words: list[str]) -> None:
    hidden = f"import sys; sys.modules['scipy'] = None; from wherry.cli.main import main; main({words!r})"
    done = python(hidden)
    assert done.returncode == 4, done.stderr
    assert "not installed: scipy" in done.stderr and "wherry[lab]" in done.stderr


def test_help_needs_no_lab_library() -> None:
    done = python(
        "import sys; sys.modules['scipy'] = None; from wherry.cli.main import main; main(['bench', '--help'])"
    )
    assert done.returncode == 0 and "list" in done.stdout, done.stderr
