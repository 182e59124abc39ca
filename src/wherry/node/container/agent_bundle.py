"""Makes the bundle that hosts by SSH get: this machine's Python with the agent's imports, native programs, CRIU.

    bin/python3         starts bin/python by lib/ld-linux…, so that nothing of the host's C library or Python is used
    lib/                shared libraries of Python and of its packages; lib/pythonX.Y is the standard library
    packages/           the agent's packages; `python3 packages -m MODULE` runs one of our modules
    packages/wherry/    with bin/ and lib/, as in an installed package; criu/ is a prefix as those of `install`

Invariant: a bundle has regular files alone, the same for the same inputs, and is made again when one of these changes.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from wherry.base.atomic_write import write_atomically
from wherry.base.errors import Code, Failed
from wherry.base.paths import native_library, native_program
from wherry.base.remedies import setup
from wherry.hostlink.bundle import DIRECTORY, Bundle
from wherry.node import elf
from wherry.node.container.criu import install as criu_install
from wherry.node.container.criu import probe as criu_probe

PARTS = ("agent", "base", "fabric", "hostlink", "model", "node")
"""Our packages that the agent may import."""
DISTRIBUTIONS = ("pydantic", "pyroute2", "protobuf")
"""Packages of others; the packages that they require come with them."""
PROGRAMS = ("hold", "init", "ns", "pager", "tls", "tree", "verify")
LIBRARIES = ("criu", "finalize", "memory", "mpi", "output", "remap", "wait")
_LOADED = ("libbpf.so.1",)
"""Libraries that the agent loads by name, where there are some."""
_NOT_STANDARD = re.compile(
    r"(?:__pycache__|test|tests|idlelib|tkinter|turtledemo|ensurepip|lib2to3|distutils|pydoc_data|venv|config-.*"
    r"|site-packages|dist-packages|lib-dynload)$|sitecustomize\.py$|.*\.(?:a|o|txt)$"
)
_NOT_LOADED = re.compile(r"_test|_xx|xx|_curses|_dbm|_gdbm|_tkinter|nis|ossaudiodev|readline|_ctypes_test")
_OF_THE_C_LIBRARY = re.compile(r"(?:ld-linux.*|lib(?:c|m|dl|rt|pthread|resolv|util|mvec|anl)\.so.*)$")
_KEPT, _KEPT_SECONDS = 3, 86_400
"""Bundles that stay on this machine, besides each bundle that a daemon began to use within so many seconds."""
_MAIN = """\
import runpy
import sys

module = sys.argv[sys.argv.index("-m") + 1]
sys.argv[1:] = sys.argv[sys.argv.index(module) + 1 :]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
_PYTHON = """\
#!/bin/sh
here=${{0%/*}}
exec "$here/../lib/{loader}" --library-path "$here/../lib" --argv0 "$0" "$here/python" "$@"
"""
_CRIU = """\
#!/bin/sh
here=${{0%/*}}/..
exec "$here/{libraries}/{loader}" --library-path "$here/{libraries}" "$here/usr/sbin/criu" "$@"
"""


@dataclass
class Inputs:
    """The inputs of a bundle: files of this machine and texts, by their path in it."""

    files: dict[str, Path] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def add_tree(self, inside: str, directory: Path, skipped: re.Pattern[str] | None = None) -> None:
        """Adds the files of a directory, without caches and names that match `skipped`."""
        for name in sorted(os.listdir(directory)):
            path = directory / name
            if name == "__pycache__" or (skipped and skipped.match(name)):
                continue
            if path.is_dir():
                self.add_tree(f"{inside}/{name}", path, skipped)
            elif path.is_file():
                self.files[f"{inside}/{name}"] = path

    def add_libraries(self, inside: str, of: Path, library_path: str = "", own_c_library: bool = True) -> str:
        """Adds the libraries that a program or library loads. Returns the name of its dynamic linker, if it has one."""
        loader, todo = "", [of]
        while todo:
            found = elf.read(todo.pop())
            if found is None:
                continue
            if found.interpreter and own_c_library:
                given = Path(library_path, Path(found.interpreter).name)
                path = given if library_path and given.exists() else Path(found.interpreter)
                loader = path.name
                self.files.setdefault(f"{inside}/{loader}", path)
            for name in found.needed:
                if f"{inside}/{name}" in self.files or (not own_c_library and _OF_THE_C_LIBRARY.match(name)):
                    continue
                library = elf.find_library(name, found, library_path)
                if library is None:
                    raise _impossible(f"{found.path} needs {name}, which is not found")
                self.files[f"{inside}/{name}"] = library
                todo.append(library)
        return loader

    def key(self) -> str:
        """A hash of their present names, sizes and times."""
        hashed = hashlib.sha256(json.dumps(self.texts, sort_keys=True).encode())
        for name, path in sorted(self.files.items()):
            about = path.stat()
            hashed.update(f"{name}\n{path}\n{about.st_size} {about.st_mtime_ns}\n".encode())
        return hashed.hexdigest()


def inputs() -> Inputs:
    """The bundle's inputs on this machine. Failed when one of them is not found."""
    found = Inputs()
    _add_python(found)
    for name in distributions():
        _add_distribution(found, name)
    here = Path(__file__).resolve().parents[2]
    for part in PARTS:
        found.add_tree(f"packages/wherry/{part}", here / part)
    found.files["packages/wherry/__init__.py"] = here / "__init__.py"
    found.texts["packages/__main__.py"] = _MAIN
    for path in (*(native_program(f"wherry-{name}") for name in PROGRAMS), *_libraries()):
        inside = "lib" if ".so" in path.suffixes else "bin"
        found.files[f"packages/wherry/{inside}/{path.name}"] = path
        found.add_libraries("packages/wherry/lib", path, own_c_library=False)
    _add_criu(found, Path("packages/wherry/criu"))
    return found


def bundle() -> Bundle:
    """The bundle of this machine's Wherry, made when there is none of its present inputs. Failed. Needs root."""
    try:
        return _found_or_made(inputs())
    except (OSError, subprocess.SubprocessError) as error:
        why = f"{type(error).__name__}: {error}"
        raise Failed(Code.FAILED, "the bundle for hosts cannot be made", why, "df -h /var/lib") from error


def _found_or_made(wanted: Inputs) -> Bundle:
    key = wanted.key()
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    DIRECTORY.chmod(0o755)
    with open(DIRECTORY / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = DIRECTORY / f".made-{key}"
        digest = note.read_text() if note.exists() else ""
        found = Bundle(digest, _archive(digest))
        if not digest or not found.archive.exists() or not found.directory.exists():
            found = _make(wanted)
            write_atomically(note, found.digest.encode(), 0o644)
        os.utime(found.directory)
        _drop_old(found.digest)
    return found


def distributions() -> list[str]:
    """Names of the distributions in the bundle."""
    found, todo = dict[str, None](), list(DISTRIBUTIONS)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop().lower())
        if name in found:
            continue
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            if name in DISTRIBUTIONS:
                raise _impossible(f"the package {name} is not found") from None
            continue  # another system's, or another Python's
        found[name] = None
        todo += [each for word in required if "extra" not in word and (each := re.split(r"[^\w.-]", word)[0])]
    return list(found)


def _add_python(found: Inputs) -> None:
    program = Path(os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    standard = Path(sysconfig.get_path("stdlib"))
    modules = Path(sysconfig.get_config_var("DESTSHARED") or standard / "lib-dynload")
    found.files["bin/python"] = program
    loader = found.add_libraries("lib", program)
    if not loader or not modules.is_dir():
        raise _impossible(f"{program} is no Python that can be copied")
    found.texts["bin/python3"] = _PYTHON.format(loader=loader)
    found.add_tree(f"lib/{version}", standard, _NOT_STANDARD)
    found.add_tree(f"lib/{version}/lib-dynload", modules, _NOT_LOADED)
    for path in [*found.files.values()]:
        if ".so" in path.suffixes and path.is_relative_to(modules):
            found.add_libraries("lib", path)
    for name in _LOADED:
        if library := elf.find_library(name, elf.Elf(program, (), (), ()), ""):
            found.files[f"lib/{name}"] = library
            found.add_libraries("lib", library)


def _add_distribution(found: Inputs, name: str) -> None:
    files = metadata.files(name)
    if files is None:
        raise _impossible(f"it is not known which files the package {name} has")
    for file in files:
        path = Path(str(file.locate()))
        top, wanted = file.parts[0], file.suffix != ".pyi" and "__pycache__" not in file.parts
        if top.endswith(".dist-info"):
            wanted = file.name in ("METADATA", "entry_points.txt")
        if ".." in file.parts or not wanted or not path.is_file():
            continue
        found.files[f"packages/{file.as_posix()}"] = path
        if ".so" in path.suffixes:
            found.add_libraries("lib", path)


def copy_criu(prefix: Path) -> bool:
    """Copies the CRIU that works here into a new prefix, for a package (scripts/deb). False when none works."""
    found = Inputs()
    _add_criu(found, Path())
    _copy(found, prefix)
    return bool(found.files)


def _add_criu(found: Inputs, prefix: Path) -> None:
    """The CRIU that works here, as a prefix; none when none does."""
    criu = criu_probe.find()
    if not criu.works:
        return
    program = Path(criu.argv[-1])
    given = criu.argv[criu.argv.index("--library-path") + 1] if "--library-path" in criu.argv else ""
    if elf.read(program) is None:  # a script that starts one
        return
    loader, _, libraries, inside = criu_install.command(prefix)
    if found.add_libraries(libraries, program, given) != Path(loader).name:
        return
    found.files[inside] = program
    words = {"libraries": str(Path(libraries).relative_to(prefix)), "loader": Path(loader).name}
    found.texts[str(criu_install.starter(prefix))] = _CRIU.format(**words)


def _libraries() -> Iterator[Path]:
    for name in LIBRARIES:
        yield native_library(f"libwherry-{name}.so")


def _make(wanted: Inputs) -> Bundle:
    with tempfile.TemporaryDirectory(prefix=".make-", dir=DIRECTORY) as temporary:
        root = Path(temporary) / "bundle"
        _copy(wanted, root)
        _compile(root)
        _run(root, str(root / "packages"), "-m", "wherry.agent")  # which ends at once, with its input
        manifest = "".join(
            f"{_digest(path)}  {path.relative_to(root)}\n" for path in sorted(root.rglob("*")) if path.is_file()
        )
        (root / "manifest").write_text(manifest)
        (root / "manifest").chmod(0o644)
        made = Bundle(hashlib.sha256(manifest.encode()).hexdigest(), Path(temporary) / "archive")
        _pack(root, made.archive)
        subprocess.run(["sync", "--file-system", temporary], check=True, timeout=600)
        if made.directory.exists():
            shutil.rmtree(made.directory)
        os.rename(root, made.directory)
        os.replace(made.archive, _archive(made.digest))
    return Bundle(made.digest, _archive(made.digest))


def _copy(wanted: Inputs, root: Path) -> None:
    names = [*wanted.files, *wanted.texts]
    for directory in sorted({(root / name).parent for name in names}):
        directory.mkdir(parents=True, exist_ok=True)
    for name, source in wanted.files.items():
        shutil.copyfile(source, root / name)
        (root / name).chmod(0o755 if os.access(source, os.X_OK) else 0o644)
    for name, text in wanted.texts.items():
        (root / name).write_text(text)
        (root / name).chmod(0o755 if text.startswith("#!") else 0o644)
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)


def _compile(root: Path) -> None:
    """Compiled modules, which nothing at a host writes: with them an agent starts in a fraction of the time."""
    words = ["-m", "compileall", "-q", "-j", "2", "-s", str(root), "--invalidation-mode", "unchecked-hash"]
    _run(root, *words, str(root / "lib"), str(root / "packages"))


def _run(root: Path, *words: str) -> None:
    """Runs the bundle's own Python. Failed with its output."""
    command = [str(root / "bin/python3"), "-I", "-S", "-B", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL, env={}, check=False
    )
    if done.returncode:
        raise _impossible((done.stdout + done.stderr).strip()[-400:])


def _pack(root: Path, archive: Path) -> None:
    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    with gzip.GzipFile(archive, "wb", 1, mtime=0) as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
        for path in sorted(root.rglob("*")):
            tar.add(path, str(path.relative_to(root)), recursive=False, filter=plain)


def _drop_old(digest: str) -> None:
    """Removes the bundles of earlier builds but the newest."""
    there = [path for path in DIRECTORY.iterdir() if re.fullmatch("[0-9a-f]{64}", path.name) and path.name != digest]
    for path in sorted(there, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT - 1 :]:
        if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
            _archive(path.name).unlink(missing_ok=True)
    for note in DIRECTORY.glob(".made-*"):
        if not (DIRECTORY / note.read_text()).exists():
            note.unlink()


def _archive(digest: str) -> Path:
    return DIRECTORY / f".{digest}.tar.gz"


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _impossible(why: str) -> Failed:
    return Failed(Code.FAILED, "the bundle for hosts cannot be made", why, setup())
