"""The root of an image, as a squashfs: the MPI runtimes, busybox, the agent, and programs chosen by the user.

All files come from this machine and keep their paths, so that a program that is copied to a node finds its libraries.
The file FILES inside lists them with digests, so that staging omits them.
Invariant: the tree depends only on the files, so the same files give the same image.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import native_program
from wherry.base.remedies import setup
from wherry.node.file_closure import FileSet, add_content

FILES = "/usr/lib/wherry/files.json"
"""In the guest: a JSON object as `FileSet.digests` gives it."""
AGENT = "/usr/lib/wherry/init"
"""In the guest: wherry-init; native/guest/main.c starts it."""

MODULES = "/usr/lib/wherry/modules"
"""In the guest: modules that native/guest/user_files.c loads."""

_BASE = tuple("bin dev etc home lib lib64 opt proc root run sbin srv sys tmp usr var".split())
_NSSWITCH = b"passwd: files\ngroup: files\nhosts: files\n"
_OF_THE_MACHINE = ("/etc/ld.so.cache", "/etc/passwd", "/etc/group")
_BLOCK = "64K"
"""Block size of the squashfs, the unit of decompression. Smaller blocks waste less of a small machine's memory."""


@dataclass(frozen=True)
class Runtime:
    """The files that an MPI needs on a node. Patterns are below /usr/lib/*/; missing files are omitted."""

    name: str
    programs: tuple[str, ...]
    libraries: tuple[str, ...]
    plugins: tuple[str, ...] = ()
    data: tuple[str, ...] = ()


_RUNTIMES = (
    Runtime(
        "Open MPI",
        ("orted", "prted"),
        ("libmpi.so.40",),
        (
            *("openmpi/lib/openmpi3/*.so", "openmpi/lib/openmpi/*.so", "openmpi/lib/prte/*.so"),
            *("pmix*/lib/pmix/*.so", "prrte*/lib/prte/*.so"),
        ),
        (
            *("/etc/openmpi", "/etc/pmix*", "/etc/prte*", "/usr/lib/*/pmix2/share"),
            *("/usr/share/openmpi", "/usr/share/pmix*", "/usr/share/prte*"),
        ),
    ),
    Runtime("MPICH", ("hydra_pmi_proxy",), ("libmpich.so.12", "libmpi.so.12")),
)
_OTHER_HARDWARE = frozenset(
    "alps atomic cuda gpfs gridengine hcoll knem lsf lustre memheap monitoring munge ofi openib oshmem portals4 psm "
    "psm2 pvfs2 rocm scoll sge slurm spml sshmem tm ucx ugni usnic verbs xpmem yalla ze".split()
)
"""Parts of the names of plugins for networks, schedulers or interfaces that a node never has."""


def collect(programs: Sequence[str]) -> FileSet:
    """The files of this machine for the image. Refused when a program or one of its libraries is missing."""
    found = FileSet()
    for program in programs:
        try:
            found.add_tree(program)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise Refused(Code.NOT_FOUND, f"the program {program} cannot be read", why, f"ls -l {program}") from None
    if found.missing:
        library, wanted_by = next(iter(found.missing.items()))
        what = f"{wanted_by} needs {library}, which is not there"
        raise Refused(Code.NOT_FOUND, what, "it is neither in its RPATH nor in the linker's cache", "install it")
    for runtime in _RUNTIMES:
        _add_runtime(found, runtime)
    for name in _OF_THE_MACHINE:
        if os.path.exists(name):
            found.add(name)
    for name in _BASE:
        if os.path.islink(f"/{name}"):
            found.add(f"/{name}")
    return found


def runtimes(found: FileSet) -> list[str]:
    """The names of the MPIs in the set."""
    return [r.name for r in _RUNTIMES if any(os.path.basename(name) in r.programs for name in found.files)]


def _add_runtime(found: FileSet, runtime: Runtime) -> None:
    libraries = [path for name in runtime.libraries for path in glob.glob(f"/usr/lib/*/{name}")]
    programs = [path for name in runtime.programs if (path := shutil.which(name))]
    if not libraries or not programs:
        return
    for pattern in runtime.plugins:
        for path in sorted(glob.glob(f"/usr/lib/*/{pattern}")):
            if not _OTHER_HARDWARE & set(re.split(r"[_.-]", os.path.basename(path))):
                libraries.append(path)
    for path in (*programs, *libraries):
        found.add_program(path)
    for pattern in runtime.data:
        for path in sorted(glob.glob(pattern)):
            found.add_tree(path)


def write_root(found: FileSet, squashfs: Path, modules: Sequence[Path] = ()) -> None:
    """Writes the squashfs. `modules` of the kernel go to MODULES."""
    words = ["sqfstar", "-comp", "zstd", "-b", _BLOCK, "-no-xattrs", "-quiet", "-no-progress", str(squashfs)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
    try:
        maker = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
        )
    except FileNotFoundError:
        raise Failed(Code.UNSUPPORTED, "this machine has no sqfstar", "", setup("setup-vm")) from None
    with maker:
        assert maker.stdin and maker.stderr
        try:
            with tarfile.open(fileobj=maker.stdin, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                _write_members(tar, found, modules)
        except BrokenPipeError:
            pass  # its error output has the reason
        maker.stdin.close()
        text = maker.stderr.read().decode(errors="replace").strip()
    if maker.returncode:
        raise Failed(Code.FAILED, "the root of the image was not made", text.splitlines()[-1] if text else "", "df -h")


def _write_members(tar: tarfile.TarFile, found: FileSet, modules: Sequence[Path]) -> None:
    busybox = shutil.which("busybox")
    if not busybox:
        raise Failed(Code.UNSUPPORTED, "this machine has no busybox", "", setup("setup-vm"))
    own: dict[str, tuple[bytes, int]] = {
        "/etc/nsswitch.conf": (_NSSWITCH, 0o644),
        "/usr/bin/busybox": (Path(busybox).read_bytes(), 0o755),
        AGENT: (native_program("wherry-init").read_bytes(), 0o755),
        FILES: (json.dumps(found.digests(), sort_keys=True).encode(), 0o644),
        **{f"{MODULES}/{module.name}": (module.read_bytes(), 0o644) for module in modules},
    }
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    taken = {os.path.basename(name) for name in (*found.files, *found.links)}
    links = {f"/usr/bin/{name}" for name in applets if name not in taken} - set(own)
    _write_directories(tar, found, [*own, *links])
    found.write(tar, (0, 0))
    for name, (content, mode) in own.items():
        add_content(tar, name, content, mode)
    for name in sorted(links):
        member = tarfile.TarInfo(name.lstrip("/"))
        member.type, member.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(member)


def _write_directories(tar: tarfile.TarFile, found: FileSet, others: Sequence[str]) -> None:
    """Every directory, parents first. World-writable: the machine has one user, and root starts no programs later."""
    names = {f"/{name}" for name in (*_BASE, "var/tmp") if f"/{name}" not in found.links} | set(found.directories)
    for path in (*names, *found.files, *found.links, *others):
        names |= {str(above) for above in Path(path).parents if str(above) != "/"}
    for name in sorted(names):
        member = tarfile.TarInfo(name.lstrip("/"))
        member.type, member.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("/tmp") else 0o777
        tar.addfile(member)
