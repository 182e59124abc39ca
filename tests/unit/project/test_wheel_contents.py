"""The wheel: it has all that an installed Wherry looks for, and looks for it there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
NATIVE = TOP / "build" / "native"
_LOOK = """
import json
from wherry.base import components, paths, remedies
import wherry.service.web
import wherry_tiles.cli
found = [paths.native_program("wherry-init"), paths.native_library("libwherry-mpi.so"), paths.for_programs("wherry.h"),
         paths.for_programs("wherry_inside.py"), paths.examples() / "hello.yaml", wherry.service.web.__file__]
print(json.dumps([list(map(str, found)), remedies.setup(), len(components.installed())]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made without the network."""
    if not (NATIVE / "bin" / "wherry-init").exists():
        pytest.skip("there are no native programs: make setup")
    made = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)]
    done = subprocess.run(words, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = made.iterdir()
    return found


def test_all_files_are_in_it(wheel: Path) -> None:
    assert re.fullmatch(r"wherry-[\d.]+-py3-none-manylinux_\d+_\d+_x86_64\.whl", wheel.name)
    files = {one.filename: one.external_attr >> 16 for one in zipfile.ZipFile(wheel).infolist()}
    expected = {f"wherry/{path.relative_to(NATIVE)}" for place in ("bin", "lib") for path in (NATIVE / place).rglob("*")
                if path.is_file()}  # fmt: skip
    for source, inside in ((TOP / "src/wherry", "wherry"), (TOP / "examples", "wherry/examples")):
        expected |= {f"{inside}/{path.relative_to(source)}" for path in source.rglob("*") if path.is_file()}
    expected |= {f"wherry_tiles/examples/{path.name}" for path in (TOP / "tiles/examples").glob("*.yaml")}
    assert {name for name in expected if "__pycache__" not in name} - set(files) == set()
    assert files["wherry/bin/wherry-init"] & 0o111 == 0o111
    libraries = zipfile.ZipFile(wheel).read("wherry/lib/LIBRARIES").decode().split()
    assert "libisal.so.2" in libraries and all(f"wherry/lib/{name}" in files for name in libraries)


def test_an_installed_one_uses_its_own_files(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    pager = tmp_path / "wherry" / "bin" / "wherry-pager"
    pager.chmod(0o755)
    loaded = subprocess.run(["ldd", str(pager)], capture_output=True, text=True, check=True).stdout
    assert f"=> {tmp_path}/wherry/bin/../lib/libisal.so.2" in loaded
    run = subprocess.run(
        [sys.executable, "-P", "-c", _LOOK],
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found, remedy, components = json.loads(run.stdout)
    assert [name for name in found if not name.startswith(f"{tmp_path}/wherry/")] == []
    assert remedy == "sudo wherry doctor --install" and components == 1


def test_without_native_programs_there_is_none(tmp_path: Path) -> None:
    for name in ("hatch_build.py", "pyproject.toml", "README.md"):
        shutil.copy(TOP / name, tmp_path)
    shutil.copytree(TOP / "src/wherry/base", tmp_path / "src/wherry/base")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "a wheel needs the native programs" in done.stderr
    assert "make setup" in done.stderr
