"""What a measurement was taken on: kept beside its samples, printed in its report."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import wherry


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
        "mpich": _first_line("mpiexec.mpich", "--version"),
        "runc": _first_line("runc", "--version"),
        "wherry": wherry.__version__,
        "load": load(),
    }


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


def _first_line(*command: str) -> str:
    if not shutil.which(command[0]):
        return "not installed"
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    lines = (result.stdout or result.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"
