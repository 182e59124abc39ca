"""The kernel of an image: Debian's, extracted from its package, which is not installed.

    CACHE/linux-image-VERSION_PACKAGE_WANTED/vmlinux     the uncompressed kernel, with its PVH note
    CACHE/linux-image-VERSION_PACKAGE_WANTED/modules/    NAME.ko, and `list` (native/guest/kernel_modules.h)

WANTED is a checksum of the modules' names.

Invariant: a directory in the cache is complete.
"""

from __future__ import annotations

import lzma
import re
import shutil
import struct
import subprocess
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.remedies import setup
from wherry.base.units import format_size
from wherry.model.adapters import ADAPTER_DRIVERS, USUAL_ADAPTERS

_META = "linux-image-amd64"
"""Debian's generic kernel; the cloud kernel lacks the drivers of most network adapters."""
_ALWAYS = ("loop", "squashfs", "overlay", "qemu_fw_cfg")
_DEVICES = (
    *("virtio_pci", "virtio_console", "virtio_balloon", "virtio_rng", "xen_netfront"),
    *(ADAPTER_DRIVERS[model] for model in USUAL_ADAPTERS),
)
_OTHER_ADAPTERS = tuple(sorted({*ADAPTER_DRIVERS.values()} - {*_DEVICES}))
"""Drivers that a kernel may lack: its images then have fewer models of adapters."""
_FILES = ("nfsv4",)
"""Loaded where the user's directories are served."""
_FORESEEN = (
    *("virtio", "virtio_ring", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "net_failover", "failover"),
    *("rng_core", "mii", "ptp", "pps_core", "8390", "i2c_core", "i2c_algo_bit", "dca"),
    *("nfs", "lockd", "grace", "sunrpc", "nfs_ssc", "dns_resolver", "fscache", "netfs"),
)
"""Dependencies of these; unexpected ones cost one more pass over the package."""
_BUSES = ("pci:", "virtio:", "acpi", "xen:")
_MODULE = re.compile(r"(?:^|/)lib/modules/[^/]+/kernel/.*/([^/]+)\.ko(\.xz|\.zst)?$")
_KERNEL = re.compile(r"(?:^|/)boot/vmlinuz-[^/]+$")
_BUILT_IN = re.compile(r"(?:^|/)lib/modules/[^/]+/modules\.builtin$")
_DOWNLOAD_SECONDS, _CHECK_SECONDS = 300.0, 0.2


@dataclass(frozen=True)
class Kernel:
    """A kernel in the cache."""

    package: str
    version: str
    directory: Path

    @property
    def vmlinux(self) -> Path:
        """The kernel image."""
        return self.directory / "vmlinux"

    @property
    def modules(self) -> list[Path]:
        """The module files that a machine boots with, and the list of all."""
        late = self._late()
        return [path for path in sorted((self.directory / "modules").iterdir()) if path.stem not in late]

    @property
    def late_modules(self) -> list[Path]:
        """The modules that are loaded when the root is there: uncompressed, they would not fit into a small machine."""
        return [self.directory / "modules" / f"{name}.ko" for name in sorted(self._late())]

    @property
    def adapters(self) -> tuple[str, ...]:
        """Models of network adapters that it drives."""
        return tuple(
            model
            for model, driver in ADAPTER_DRIVERS.items()
            if model in USUAL_ADAPTERS or (self.directory / "modules" / f"{driver}.ko").exists()
        )

    def _late(self) -> set[str]:
        lines = [line.split() for line in (self.directory / "modules" / "list").read_text().splitlines()]
        needs = {words[1]: words[2:] for words in lines if words[0] == "module"}
        return _closure(_FILES, needs) - _closure((*_ALWAYS, *_DEVICES), needs)


def _closure(names: Iterable[str], needs: Mapping[str, list[str]]) -> set[str]:
    """Those of these modules that are no part of the kernel, with all that they need."""
    found, todo = set[str](), [name for name in names if name in needs]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += needs[name]
    return found


def find_kernel(cache: Path, progress: Callable[[str], None], check: Callable[[], None]) -> Kernel:
    """The newest kernel in the machine's package sources; downloaded unless it is in the cache. `check` raises to
    abort."""
    package, version = _newest()
    wanted = zlib.crc32(" ".join((*_ALWAYS, *_DEVICES, *_FILES, *_OTHER_ADAPTERS)).encode())
    kernel = Kernel(package, version, cache / f"{package}_{version.replace(':', '%3a')}_{wanted:08x}")
    if kernel.directory.is_dir():
        return kernel
    cache.mkdir(parents=True, exist_ok=True)
    fresh = cache / ".fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "modules").mkdir(parents=True)
    try:
        progress(f"downloading {package} {version}")
        archive = _download(package, version, fresh, check)
        check()
        progress(f"extracting kernel and modules ({format_size(archive.stat().st_size)})")
        _extract(archive, fresh)
        archive.unlink()
        for old in cache.glob("linux-image-*"):
            shutil.rmtree(old)
        fresh.rename(kernel.directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return kernel


def _newest() -> tuple[str, str]:
    """Name and version of the package on which the meta package depends."""
    found = re.search(r"Depends: (linux-image-\S+)", _run("apt-cache", "depends", _META).decode())
    version = re.search(r"^Version: (\S+)", _run("apt-cache", "show", found[1]).decode(), re.M) if found else None
    if found is None or version is None:
        why = f"the package sources of this machine have no {_META}"
        remedy = f"apt-get update, or: {setup('setup-vm')}"
        raise Failed(Code.FAILED, "no kernel for virtual machines was found", why, remedy)
    return found[1], version[1]


def _download(package: str, version: str, directory: Path, check: Callable[[], None]) -> Path:
    # As root: the user that apt would become may not write here.
    words = ("-q", "-o", "APT::Sandbox::User=root", "download", f"{package}={version}")
    _run("apt-get", *words, cwd=directory, check=check)
    return next(directory.glob("*.deb"))


def _extract(archive: Path, directory: Path) -> None:
    """Extracts the kernel, and the modules with their dependencies."""
    modules: dict[str, bytes] = {}
    kernel: dict[str, bytes] = {}
    wanted = {*_ALWAYS, *_DEVICES, *_FILES, *_OTHER_ADAPTERS, *_FORESEEN}
    while wanted:
        _read(archive, wanted, modules, kernel)
        needed = {need for content in modules.values() for need in _modinfo(content, "depends")}
        wanted = needed - set(modules) - wanted
    built_in = {_name(line) for line in kernel.get("modules.builtin", b"").decode().split()}
    lost = {*_ALWAYS, *_DEVICES, *_FILES} - set(modules) - built_in
    if lost or "vmlinuz" not in kernel:
        why = f"it has no {', '.join(sorted(lost)) or 'kernel'}"
        raise Failed(Code.FAILED, f"{archive.name} cannot be used", why, "report this")
    (directory / "vmlinux").write_bytes(unpack(kernel["vmlinuz"]))
    for name, content in modules.items():
        (directory / "modules" / f"{name}.ko").write_bytes(content)
    (directory / "modules" / "list").write_text(module_list(modules))


def _read(archive: Path, wanted: set[str], modules: dict[str, bytes], kernel: dict[str, bytes]) -> None:
    """Reads the wanted modules from the package, and `vmlinuz` and `modules.builtin`."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as unpacker:
        with tarfile.open(fileobj=unpacker.stdout, mode="r|") as tar:
            for member in tar:
                module = _MODULE.search(member.name)
                if module and _name(module[1]) in wanted:
                    content = _content(tar, member)
                    modules[_name(module[1])] = _unpacked(content) if module[2] else content
                elif _KERNEL.search(member.name):
                    kernel["vmlinuz"] = _content(tar, member)
                elif _BUILT_IN.search(member.name):
                    kernel["modules.builtin"] = _content(tar, member)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file else b""


def _name(path: str) -> str:
    """A module's name, from its file name."""
    return path.rpartition("/")[2].removesuffix(".ko").replace("-", "_")


def module_list(modules: dict[str, bytes]) -> str:
    """The list that the guest reads, from the modules' metadata."""
    lines = [f"module {' '.join((name, *_modinfo(content, 'depends')))}" for name, content in sorted(modules.items())]
    lines += [f"always {name}" for name in _ALWAYS if name in modules]  # the others are built in
    for name in (*_DEVICES, *_OTHER_ADAPTERS):
        aliases = _modinfo(modules.get(name, b""), "alias")
        lines += [f"alias {alias} {name}" for alias in aliases if alias.startswith(_BUSES)]
    return "\n".join(lines) + "\n"


def _modinfo(module: bytes, key: str) -> list[str]:
    """The values of a key in a module's .modinfo section: strings KEY=VALUE terminated by NUL."""
    values = [value.decode() for value in re.findall(rb"\0%s=([\x20-\x7e]*)(?=\0)" % key.encode(), module)]
    if key == "depends":
        return [name.replace("-", "_") for value in values for name in value.split(",") if name]
    return values


def unpack(image: bytes) -> bytes:
    """The ELF file inside a bzImage (the kernel's Documentation/arch/x86/boot.rst). Failed when there is none."""
    if image[0x202:0x206] == b"HdrS":
        start = (image[0x1F1] + 1) * 512 + struct.unpack_from("<I", image, 0x248)[0]
        (length,) = struct.unpack_from("<I", image, 0x24C)
        found = _unpacked(image[start : start + length])
        if found.startswith(b"\x7fELF"):
            return found
    raise Failed(
        Code.FAILED, "the kernel cannot be unpacked", "it is no bzImage with an ELF file inside", "report this"
    )


def _unpacked(data: bytes) -> bytes:
    """Decompresses xz, gzip, zstd or lz4. The kernel's build appends four bytes, the size, which are ignored."""
    if data.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(data)
    if data.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(wbits=31).decompress(data)
    for magic, program in ((b"\x28\xb5\x2f\xfd", "zstd"), (b"\x02\x21\x4c\x18", "lz4")):
        if data.startswith(magic):
            try:
                done = subprocess.run([program, "-dc"], input=data, capture_output=True, check=False)
            except FileNotFoundError:
                what, why = "the kernel cannot be unpacked", f"this machine has no {program}"
                raise Failed(Code.UNSUPPORTED, what, why, f"apt-get install {program}") from None
            return done.stdout  # the trailing bytes only affect the exit code
    raise Failed(Code.FAILED, "the kernel cannot be unpacked", f"unknown compression {data[:4].hex()}", "report this")


def _run(*words: str, cwd: Path | None = None, check: Callable[[], None] = lambda: None) -> bytes:
    """The output of a program. `check` is called several times a second; an exception that it raises ends it."""
    pipe, deadline = subprocess.PIPE, time.monotonic() + _DOWNLOAD_SECONDS
    try:
        process = subprocess.Popen(words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    except FileNotFoundError:
        why = "the kernel is taken from Debian's packages"
        raise Failed(Code.UNSUPPORTED, f"this machine has no {words[0]}", why, "build images on Debian") from None
    try:
        output, errors = _wait(process, deadline, check)
    except subprocess.TimeoutExpired:
        why = f"waited {_DOWNLOAD_SECONDS:.0f} s"
        raise Failed(
            Code.TIMED_OUT, f"{' '.join(words[:2])} did not end", why, "check the network, then repeat the command"
        ) from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        why = (errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise Failed(Code.FAILED, f"{' '.join(words[:2])} failed", why, f"apt-get update, or: {setup('setup-vm')}")
    return output


def _wait(process: subprocess.Popen[bytes], deadline: float, check: Callable[[], None]) -> tuple[bytes, bytes]:
    """Output and errors of a program that has ended. TimeoutExpired after the deadline."""
    while True:
        try:
            return process.communicate(timeout=_CHECK_SECONDS)
        except subprocess.TimeoutExpired:
            check()
            if time.monotonic() > deadline:
                raise
