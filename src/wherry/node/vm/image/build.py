"""Builds an image: Debian's kernel, and a RAM disk with a root made from this machine's files."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.base.paths import images_directory, native_program
from wherry.model.records import AGENT_VERSION, Image
from wherry.node.vm.image import cpio
from wherry.node.vm.image.catalog import exclusive
from wherry.node.vm.image.kernel import Kernel, find_kernel
from wherry.node.vm.image.root import collect, runtimes, write_root
from wherry.node.vm.qemu_user import grant_read

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_PACKAGES = ("busybox-static", "libc6", "libmpich12", "libopenmpi*", "libpmix2*", "mpich", "openmpi-bin")


def check(name: str, programs: Sequence[str]) -> None:
    """Refused for an invalid name, and for programs that do not exist."""
    if not _NAME.fullmatch(name):
        why = "it must be 1 to 32 lower-case letters, digits and hyphens, not beginning with a hyphen"
        raise Refused(Code.USAGE, f"{name!r} is not a name for an image", why, "wherry image build NAME")
    for program in programs:
        if not os.path.isabs(program) or not os.path.exists(program):
            why = "there is no such file or directory"
            raise Refused(Code.NOT_FOUND, f"the program {program} is not there", why, "give the program's path")


def build(name: str, programs: Sequence[str], progress: Callable[[str], None], check_on: Callable[[], None]) -> Image:
    """Builds or rebuilds an image. `programs` are absolute paths; `check_on` raises to abort."""
    images_directory().mkdir(parents=True, exist_ok=True)
    with exclusive():
        return _build(name, programs, progress, check_on)


def _build(name: str, programs: Sequence[str], progress: Callable[[str], None], check_on: Callable[[], None]) -> Image:
    top = images_directory()
    for stale in top.glob(".*.*"):  # of builds and removals whose daemon was killed: nobody else is at it now
        shutil.rmtree(stale, ignore_errors=True)
    progress("looking for MPI's runtime and the programs' libraries")
    found = collect(programs)
    check_on()
    kernel = find_kernel(top / ".kernels", progress, check_on)
    check_on()
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=top) as scratch:
        fresh = Path(scratch) / "image"
        fresh.mkdir(mode=0o755)
        progress(f"packing {len(found.files)} files")
        write_root(found, Path(scratch) / "root.squashfs", kernel.late_modules)
        _write_initrd(fresh / "initrd.img", kernel, Path(scratch) / "root.squashfs")
        os.link(kernel.vmlinux, fresh / "kernel")
        for file in ("initrd.img", "kernel"):
            grant_read(fresh / file)
        record = Image(
            name=name,
            digest=_digest(fresh / "kernel", fresh / "initrd.img"),
            built=now(),
            kernel=kernel.package.removeprefix("linux-image-"),
            packages={kernel.package: kernel.version, **_versions()},
            mpi=tuple(runtimes(found)),
            programs=tuple(programs),
            agent=AGENT_VERSION,
            adapters=kernel.adapters,
            files=True,
            bytes=sum(file.stat().st_size for file in fresh.iterdir()),
        )
        (fresh / "image.json").write_text(record.model_dump_json(indent=2) + "\n")
        old = Path(scratch) / "old"
        if (top / name).exists():
            (top / name).rename(old)
        fresh.rename(top / name)
        shutil.rmtree(old, ignore_errors=True)
    return record


def _write_initrd(path: Path, kernel: Kernel, root: Path) -> None:
    entries = [cpio.directory(name) for name in ("dev", "modules", "proc", "sys")]
    entries.append(cpio.file("init", native_program("wherry-guest"), 0o755))
    entries += [cpio.file(f"modules/{module.name}", module) for module in kernel.modules]
    entries.append(cpio.file("root.squashfs", root))
    with open(path, "wb") as out:
        cpio.write(out, entries)


def _digest(*files: Path) -> str:
    """SHA-256 over the digests of the files."""
    whole = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _versions() -> dict[str, str]:
    """The installed versions of the packages that the image is made from."""
    words = ["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n", *_PACKAGES]
    lines = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
    rows = [line.split() for line in lines]
    return {row[0]: row[1] for row in rows if row[-1] == "installed"}
