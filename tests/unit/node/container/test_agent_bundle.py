"""The contents of the bundle of hosts by SSH: all that the agent imports or runs, found by reading its modules."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import wherry
from wherry.base.errors import Failed
from wherry.job import preload
from wherry.node.container import agent_bundle
from wherry.node.container.agent_bundle import DISTRIBUTIONS, LIBRARIES, PARTS, PROGRAMS, Inputs

_TOP = Path(wherry.__file__).parent
_NOT_AT_HOSTS = {"wherry-link", "wherry-rsh"}
"""Programs of emulated hosts, and of the daemon, that modules of the agent name without running them at a host."""


def file_of(module: str) -> Path | None:
    path = _TOP.parent / module.replace(".", "/")
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.exists()), None)


def imported(path: Path) -> Iterator[str]:
    """Modules, in functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def reached() -> tuple[set[str], set[str]]:
    """Modules of ours that the agent may import, and the first words of others."""
    todo, ours, others = ["wherry.agent.__main__", "wherry.agent.report"], set[str](), set[str]()
    while todo:
        module = todo.pop()
        if not module.startswith("wherry"):
            others.add(module.split(".")[0])
        elif module not in ours and (path := file_of(module)):
            ours.add(module)
            todo += imported(path)
    return ours, others - set(sys.stdlib_module_names)


def test_all_that_the_agent_imports_is_in_it() -> None:
    ours, others = reached()
    assert {module.split(".")[1] for module in ours if "." in module} <= set(PARTS)
    known = metadata.packages_distributions()
    has = {re.sub(r"[-_.]+", "-", name.lower()) for name in agent_bundle.distributions()}
    for module in others:
        assert {re.sub(r"[-_.]+", "-", name.lower()) for name in known[module]} & has, module


def test_all_programs_of_ours_that_the_agent_runs_are_in_it() -> None:
    named, libraries = set[str](), set[str]()
    for module in reached()[0]:
        path = file_of(module)
        assert path
        named |= set(re.findall(r'native_program\("([^"]+)"\)', path.read_text()))
        libraries |= set(re.findall(r'native_library\("([^"]+)"\)', path.read_text()))
    assert named - _NOT_AT_HOSTS == {f"wherry-{name}" for name in PROGRAMS}
    assert libraries <= {f"libwherry-{name}.so" for name in LIBRARIES}


def test_distributions_come_with_what_they_require() -> None:
    found = agent_bundle.distributions()
    assert set(DISTRIBUTIONS) < set(found) and "pydantic-core" in found and len(set(found)) == len(found)


def test_package_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_bundle, "DISTRIBUTIONS", ("no-such-package",))
    with pytest.raises(Failed, match=r"bundle for hosts cannot be made.*no-such-package"):
        agent_bundle.distributions()


def test_inputs_of_a_tree(tmp_path: Path) -> None:
    for name in ("a.py", "__pycache__/a.pyc", "test/t.py", "sub/b.py", "sub/sitecustomize.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "nowhere").symlink_to("gone")
    found = Inputs()
    found.add_tree("x", tmp_path, agent_bundle._NOT_STANDARD)
    assert set(found.files) == {"x/a.py", "x/sub/b.py"}


def test_key_changes_with_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    found = Inputs({"a": tmp_path / "a"}, {"b": "text"})
    keys = {found.key(), found.key()}
    (tmp_path / "a").write_text("22")
    keys.add(found.key())
    found.texts["b"] = "other"
    keys.add(found.key())
    assert len(keys) == 3


def test_program_comes_with_its_libraries_and_their_linker() -> None:
    found = Inputs()
    loader = found.add_libraries("lib", Path(sys.executable).resolve())
    assert loader and f"lib/{loader}" in found.files and "lib/libc.so.6" in found.files
    assert all(path.is_file() for path in found.files.values())
    without = Inputs()
    assert without.add_libraries("lib", Path(sys.executable).resolve(), own_c_library=False) == ""
    assert not any(name.startswith(("lib/libc.", "lib/ld-")) for name in without.files)


def test_every_library_that_ranks_may_load_is_in_it() -> None:
    names = {f"libwherry-{name}.so" for name in LIBRARIES}
    assert {library.name for library in preload.LIBRARIES} <= names
