"""Pins a machine's processors one by one, as libvirt's `vcpupin` does.

Not by libvirt: a domain's description is the same on every host, and a pin is not. Invariant: only threads of the given
QEMU are changed, and within the CPU set of its node.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from glob import glob
from pathlib import Path

_VCPU = re.compile(r"CPU (\d+)/")
"""QEMU's name for the thread of a processor; libvirt has it name them."""


def pin_vcpus(qemu: int, cpus: Sequence[int]) -> None:
    """Processor n of the machine runs on `cpus[n]`; further ones, and QEMU's other threads, on any of them."""
    for thread in map(Path, glob(f"/proc/{qemu}/task/[0-9]*")):
        with contextlib.suppress(OSError):  # it ended
            match = _VCPU.match((thread / "comm").read_text())
            if match and int(match[1]) < len(cpus):
                os.sched_setaffinity(int(thread.name), {cpus[int(match[1])]})
