"""Facts of an emulated host: kernel, processor, memory, programs, all read from this machine.

A fabric file may declare other facts, to try refusals. Invariant: it can only take something away, so every fact of a
host is also one of the machine.
"""

from __future__ import annotations

import functools
import math
import os
import shutil
import subprocess
from pathlib import Path

from wherry.fabric import cpuset
from wherry.fabric.cgroup import machine_layout
from wherry.model.records import HostFacts
from wherry.model.spec.fabric import HostSpec

RUNTIMES = ("runc", "crun")
"""OCI runtimes in the order of preference; WHERRY_RUNTIME names another one, by name or path."""


def gather(host: HostSpec, criu: str) -> HostFacts:
    """The facts of one emulated host; `criu` is the version of CRIU, empty when there is none."""
    model, features = processor(Path("/proc/cpuinfo").read_text())
    machine = os.uname()
    return HostFacts(
        kernel=machine.release,
        architecture=machine.machine,
        cpu_model=model,
        cpu_features=features - set(host.facts.without_cpu_features),
        memory=host.memory if host.facts.memory is None else min(host.memory, host.facts.memory),
        runtime=runtime_version(),
        criu=criu,
        cgroups=_cgroups(),
        cpus=(cpus := cpuset.usable()[: math.ceil(host.cores)]),
        numa={number: near for number, all_ in cpuset.numa_nodes().items() if (near := _common(all_, cpus))},
    )


def machine_cpu_seconds() -> float:
    """CPU seconds of all that runs on this machine, since it booted; time that its hypervisor took is left out."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _cgroups() -> str:
    layout = machine_layout()
    return "mixed" if layout.mixed() else "v1" if layout.v1 else "v2"


def _common(these: tuple[int, ...], those: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(number for number in these if number in those)


def processor(cpuinfo: str) -> tuple[str, frozenset[str]]:
    """Model and features of the first processor in the text of /proc/cpuinfo, for x86 (flags) or ARM (Features)."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    features = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name") or fields.get("CPU part") or "unknown", frozenset(features.split())


def runtime() -> str:
    """Path of the OCI runtime; empty when there is none."""
    chosen = os.environ.get("WHERRY_RUNTIME")
    paths = (shutil.which(name) for name in ([chosen] if chosen else RUNTIMES))
    return next(filter(None, paths), "")


def runtime_problem() -> str:
    """Why containers cannot be made; empty when they can."""
    path, named = runtime(), os.environ.get("WHERRY_RUNTIME")
    if not path:
        return f"there is no runtime {named} (WHERRY_RUNTIME)" if named else "neither runc nor crun is installed"
    if Path(path).name == "crun" and machine_layout().mixed():
        return "crun refuses a machine that has some cgroup controllers in v1 and some in v2"
    return ""


@functools.cache
def runtime_version() -> str:
    """`runc 1.1.5`; empty when there is no OCI runtime."""
    program = runtime()
    if not program:
        return ""
    name = Path(program).name
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):  # containers that need it report why it does not run
        return name
    words = done.stdout.split("\n", 1)[0].split()
    return f"{name} {words[2]}" if len(words) > 2 else name


def missing_files(host: HostSpec, paths: list[str]) -> list[str]:
    """Those of `paths` that the host lacks."""
    return [path for path in paths if path in host.facts.without_files or not os.path.exists(path)]
