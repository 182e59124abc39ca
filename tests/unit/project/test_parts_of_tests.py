"""Every test is in a part of `make test-all`, and every change touches one."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

TOP = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    """scripts/test, as a module."""
    loader = importlib.machinery.SourceFileLoader("runner", str(TOP / "scripts" / "test"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("runner", loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def test_every_file_is_in_one_part(runner: ModuleType) -> None:
    patterns = ("tests/**/test_*.py", "tiles/tests/**/test_*.py")
    files = [str(path.relative_to(TOP)) for pattern in patterns for path in TOP.glob(pattern)]
    parts = {
        file: [name for name, ps in runner.PARTS["parts"].items() if any(fnmatch(file, one) for one in ps)]
        for file in files
    }
    assert {file: found for file, found in parts.items() if len(found) != 1} == {}


def test_every_named_file_is_there(runner: ModuleType) -> None:
    patterns = [pattern for patterns in runner.PARTS["parts"].values() for pattern in patterns]
    assert [pattern for pattern in patterns if not list(TOP.glob(pattern))] == []
    assert [begin for begin in runner.PARTS["touched"] if not (TOP / begin).exists()] == []


def test_every_source_touches_a_part(runner: ModuleType) -> None:
    patterns = ("src/wherry/**/*.[ch]", "src/wherry/**/*.py", "native/**/*.[ch]", "tiles/**/*.[ch]", "tiles/w*/**/*.py")
    sources = [str(path.relative_to(TOP)) for pattern in patterns for path in TOP.glob(pattern)]
    assert [file for file in sources if runner.touched([file]) == ["unit"]] == []


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        ("src/wherry/node/vm/driver.py", ["unit", "vm"]),
        ("src/wherry/node/process.py", ["unit", "engine", "jobs"]),
        ("tests/system/test_vm.py", ["unit", "vm"]),
        ("tests/unit/service/rest/test_app.py", ["unit"]),
        ("tiles/wherry_tiles/cli.py", ["unit", "tiles"]),
        ("tiles/docs/tiles.md", ["unit", "documents"]),
        ("tiles/README.md", ["unit", "documents"]),
        ("tiles/examples/tiles.yaml", ["unit", "tiles", "documents"]),
        ("tiles/tests/unit/test_spec.py", ["unit"]),
        ("docs/tutorial.md", ["unit", "documents"]),
        ("LICENSE", ["unit"]),
    ],
)
def test_a_change_touches(runner: ModuleType, file: str, parts: list[str]) -> None:
    assert runner.touched([file]) == parts
