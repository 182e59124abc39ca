"""`make lint` refuses circles of imports, wherever the imports stand."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "check-cycles"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = spec_from_loader("check_cycles", SourceFileLoader("check_cycles", str(SCRIPT)))
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(directory: Path, **files: str) -> Path:
    for name, text in {"__init__": "", **files}.items():
        (directory / f"{name}.py").write_text(text)
    return directory


@pytest.mark.parametrize(
    "back",
    [
        "import p.a",
        "from p.a import A",
        "from p import a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import A",
        "def later() -> None:\n    from p import a",
    ],
)
def test_a_circle_is_found(check: ModuleType, tmp_path: Path, back: str) -> None:
    graph = check.python_imports(package(tmp_path, a="from p.b import B", b="import p.c", c=back, d="import p.a"), "p")
    assert check.circles(graph) == [frozenset({"p.a", "p.b", "p.c"})]


def test_a_tree_has_none(check: ModuleType, tmp_path: Path) -> None:
    graph = check.python_imports(package(tmp_path, a="from p import b, c", b="from p.c import C", c="import os"), "p")
    assert check.circles(graph) == []


def test_here_is_no_unknown_one(check: ModuleType) -> None:
    found = check.circles(check.python_imports(SCRIPT.parents[1] / "src" / "wherry", "wherry"))
    assert set(found) == set(check.KNOWN)
