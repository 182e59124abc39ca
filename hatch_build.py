"""Puts into the wheel the parts that a checkout has outside its packages: native programs, their libraries, examples.

`wherry.base.paths` looks for them first in the package: in `bin`, `lib`, `include`, `python` and `examples`.
Libraries of Debian that programs of hosts load are beside ours in `lib`, where the programs look first; `lib/LIBRARIES`
lists them. The tag names the C library of this machine, so pip refuses the wheel where that is older.

Invariant: an editable install (a checkout's .venv) is made without any of this, before there are native programs.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = ("bin", "lib", "include", "python")
EXAMPLES = {"examples": "wherry/examples", "tiles/examples": "wherry_tiles/examples"}
OF_HOSTS = ("wherry-pager", "wherry-tls", "wherry-verify")
"""Programs that load libraries beside the C library, which need not be where the wheel is installed."""
NOTE = "wherry/lib/LIBRARIES"
_OF_THE_C_LIBRARY = re.compile(r"ld-linux|lib(?:c|m|dl|rt|pthread)\.so")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that hatchling finds by the file's name."""

    _staged: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the files and the tag to a wheel."""
        if version == "editable":
            return
        root = Path(self.root)
        native = root / "build" / "native"
        if not (native / "bin" / "wherry-init").exists():
            raise SystemExit(f"a wheel needs the native programs, which are not in {native}: make setup")
        staged = self._staged = Path(tempfile.mkdtemp(prefix="wheel-", dir=root / "build"))
        for name in BUILT:
            shutil.copytree(native / name, staged / "wherry" / name)
        libraries = dict(_libraries(native / "bin" / name for name in OF_HOSTS))
        for name, path in libraries.items():
            shutil.copyfile(path, staged / "wherry" / "lib" / name)
        (staged / NOTE).write_text("".join(f"{name}\n" for name in sorted(libraries)))
        _strip(staged)
        for here, inside in EXAMPLES.items():
            if (root / here).is_dir():
                shutil.copytree(root / here, staged / inside)
        build_data["force_include"] |= {str(path): path.name for path in staged.iterdir()}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the files that are in the wheel now."""
        if self._staged:
            shutil.rmtree(self._staged)


def _platform() -> str:
    """`manylinux_2_36_x86_64`: the machine's C library, which is the oldest that the programs run with."""
    return f"manylinux_{platform.libc_ver()[1].replace('.', '_')}_{platform.machine()}"


def _libraries(programs: Iterator[Path]) -> Iterator[tuple[str, Path]]:
    for program in programs:
        shown = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        for name, path in re.findall(r"(\S+) => (/\S+)", shown):
            if not _OF_THE_C_LIBRARY.match(name):
                yield name, Path(path).resolve()


def _strip(directory: Path) -> None:
    """Removes the symbols of debuggers, nine tenths of some programs."""
    found = [path for path in directory.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    subprocess.run(["strip", "--strip-debug", *map(str, found)], check=True)
