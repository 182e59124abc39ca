"""Facts of the machine and software of a measurement; stored with its samples and printed in its report."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from wherry.base.errors import WherryError
from wherry.base.paths import native_program
from wherry.base.units import format_size
from wherry.base.version import __version__

_PACKAGES = (
    *("hpcc", "netpipe-openmpi", "netpipe-mpich2", "iputils-ping", "lammps", "gromacs"),
    *("openvpn", "wireguard-go", "wireguard-tools", "softether-vpnserver"),
)
_BUILT_BY = re.compile(rb"\0([^\0]*(?:GCC: |clang version )[^\0]*)")
"""The compiler's version string in the ELF section .comment."""
_CONSTANT = ("cpu", "cpus", "kernel", "open mpi", "mpich", "lapack, blas", "wherry")
"""Facts that must be the same for all samples of one measurement; changes of others are reported."""
HOST = "host "
"""Begin of facts that name a host of the user, which must be the same, too."""
HOSTS_LOAD = "load of hosts"
"""Fact of the user's hosts that always varies."""
SAME_MACHINE = "on the same machine"
"""In the facts of a host that has its kernel in common with another one."""


def environment() -> dict[str, str]:
    """Machine, kernel, governor, versions and load, as text."""
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "cpu": _cpu_model(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "hypervisor": "yes" if " hypervisor" in Path("/proc/cpuinfo").read_text() else "no",
        "governor": governor.read_text().strip() if governor.exists() else "not shown by this machine",
        "kernel": platform.release(),
        "system": _system(),
        "open mpi": _first_line("mpirun.openmpi", "--version"),
        "mpich": _mpich(),
        "runc": _first_line("runc", "--version"),
        "lapack, blas": ", ".join(_library(name) for name in ("liblapack.so.3", "libblas.so.3")),
        "packages": _packages(*_PACKAGES),
        "compiler": _compiler(),
        "memory": format_size(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        "wherry": f"{__version__}, programs {_programs()}",
        "load": load(),
    }


def changed_facts(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Why samples of now would not belong to those of an earlier session: another machine, or a changed one; also of
    the hosts that a measurement is on."""
    constant = (*_CONSTANT, *(key for key in before if key.startswith(HOST)))
    return [f"{k}: {before[k]} then, {now.get(k)} now" for k in constant if k in before and before[k] != now.get(k)]


def _programs() -> str:
    """Hash of the native programs and of this package: distinguishes development states of one version."""
    files = sorted(Path(__file__).parent.parent.rglob("*.py"))
    with suppress(WherryError):
        files += sorted(native_program("wherry-init").parent.iterdir())
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def load() -> str:
    """Load averages of 1, 5 and 15 minutes."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.system()


def _mpich() -> str:
    for line in _lines("mpiexec.mpich", "--version"):
        if line.strip().startswith("Version:"):
            return line.partition(":")[2].strip()
    return "not installed"


def _library(name: str) -> str:
    """Path that the dynamic linker resolves a library to, e.g. OpenBLAS for libblas.so.3."""
    for line in _lines("/sbin/ldconfig", "-p"):
        words = line.split()
        if words and words[0] == name:
            return str(Path(words[-1]).resolve())
    return f"no {name}"


def _packages(*names: str) -> str:
    """Versions of those Debian packages that are installed."""
    return ", ".join(_lines("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *names))


def _compiler() -> str:
    """Compiler of the measuring programs, read from one of them."""
    try:
        match = _BUILT_BY.search(native_program("wherry-linpack").read_bytes())
    except (WherryError, OSError):
        return "the measuring programs are not built"
    return match[1].decode(errors="replace") if match else "not noted in the measuring programs"


def _first_line(*command: str) -> str:
    if not shutil.which(command[0]):
        return "not installed"
    lines = _lines(*command)
    return lines[0] if lines else "unknown"


def _lines(*command: str) -> list[str]:
    if not shutil.which(command[0]):
        return []
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (result.stdout or result.stderr).strip().splitlines()
