"""`wherry tile` with a service in memory: refusals, remedies, and an instance without a daemon."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rest_service import Here, Service

import wherry.client.client
import wherry_tiles.cli
from wherry.base.errors import Code, Refused
from wherry.cli.files import LARGEST_FILE
from wherry.cli.main import _run
from wherry.client import daemon_process
from wherry_tiles.cli import read_tiles

BUILT = Path(__file__).parents[3] / "build" / "native" / "lib" / "tile"
Tile = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tile(capfd: pytest.CaptureFixture[str]) -> Tile:
    """Runs a command; returns exit code, standard output, standard error."""

    def run(words: str) -> tuple[int, str, str]:
        return (_run(["tile", *words.split()]), *capfd.readouterr())

    return run


@pytest.fixture
def served(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """The service is that of the command line's instance."""
    monkeypatch.setattr(wherry.client.client, "instance", lambda: service.place)
    return service


@pytest.mark.parametrize(
    ("words", "what", "why"),
    [
        ("run /bin/true --tile 16", "--tile 16", "16 is too large: at most 15"),
        ("move 32 --to 1", "PROCESS 32", "32 is too large: at most 31"),
        ("up --tiles 17", "command line", "--tiles: 17 is too large: at most 16"),
    ],
)
def test_value_of_an_option_is_refused_by_its_name(
    served: Service, tile: Tile, words: str, what: str, why: str
) -> None:
    code, _, err = tile(words)
    assert code == 2 and err.startswith("error USAGE: ") and "next: wherry tile" in err
    assert what in err.splitlines()[0] and why in err and "--help" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ps", "wherry tile up"),
        ("up no-such-file.yaml", "no-such-file.yaml"),
        ("up tiles-mesh.yaml", "wherry tile up"),
        ("run no-such-program", "no-such-program"),
    ],
)
def test_what_is_not_there(served: Service, tile: Tile, words: str, expected: str) -> None:
    code, out, err = tile(words)
    assert code == Code.NOT_FOUND.exit_code and not out and expected in err and "next: " in err


def test_remedies_for_files_work_in_any_directory(served: Service, tile: Tile, tmp_path: Path) -> None:
    cases = [("up tiles.yaml", "kind: tiles"), ("up no-such-file.yaml", "tiles-mesh.yaml")]
    for words, listed in (*cases, *([("run no-such-program", "count")] if BUILT.is_dir() else [])):
        remedy = shlex.split(tile(words)[2].partition("next: ")[2])
        shown = ["cat", remedy[-1]] if remedy[0] == "wherry" else remedy
        assert listed in subprocess.run(shown, capture_output=True, text=True, check=True, cwd=tmp_path).stdout


@pytest.mark.parametrize("words", ["ps", "down"])
def test_no_daemon_is_started_for_tiles_that_are_not_there(
    tile: Tile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("a daemon is started")

    monkeypatch.setattr(wherry.client.client, "instance", lambda: Here("test", tmp_path))
    monkeypatch.setattr(daemon_process, "start", start)
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path / "state"))
    code, _, err = tile(words)
    assert code == 3 and err.startswith("error NOT_FOUND") and "tile" in err and not any(tmp_path.iterdir())


@pytest.mark.parametrize(("program", "expected"), [("false", "exit code 1"), ("gone", "No such file")])
def test_failing_graph_program_is_an_error_without_traceback(
    tile: Tile, monkeypatch: pytest.MonkeyPatch, program: str, expected: str
) -> None:
    monkeypatch.setattr(wherry_tiles.cli, "native_program", lambda _name: Path("/bin") / program)
    code, out, err = tile("graph")
    assert code == 1 and not out and expected in err and "make setup" in err and "Traceback" not in err


def test_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"kind: tiles\n#" + b"x" * LARGEST_FILE)
    with pytest.raises(Refused) as caught:
        read_tiles(path)
    assert caught.value.code == Code.INVALID_FILE and "too large" in caught.value.what
