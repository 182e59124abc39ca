"""Counters of a virtual machine as its host sees them: system calls, bytes and switches of its QEMU, what the guest
asked of its network card, and exits to KVM.

Invariant: a counter that this machine lacks is absent, never zero.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import instance
from wherry.lab.study.levels import RunFailed
from wherry.lab.study.requirements import KVM_COUNTERS
from wherry.lab.study.testbed import ClusterShape, Testbed

_EVENTS = ("memory_region_ops_read", "memory_region_ops_write", "virtio_queue_notify", "virtio_notify")
"""QEMU's trace points: the guest reads or writes a device's register, announces entries of a queue; QEMU asks for an
interrupt."""
_CARD = re.compile(r"name '(?:virtio-pci-.*virtio-net|e1000|rtl8139|pcnet|ne2000|eepro100|igb|tulip|vmxnet3|msix-)")
"""Names of the memory regions of network cards in QEMU."""
_KVM_NAMES = {"exits": "kvm_exits", "irq_injections": "kvm_injections"}
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Machine:
    """The QEMU of a node on an emulated host."""

    node: str
    host: Path
    pid: int

    def read(self) -> dict[str, float]:
        """Counters since its start."""
        process = Path(f"/proc/{self.pid}")
        io = {name: int(value) for name, value in _pairs(process / "io")}
        seconds = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
        switches = 0
        for task in (process / "task").iterdir():
            switches += sum(int(value) for name, value in _pairs(task / "status") if name.endswith("ctxt_switches"))
        return {
            "system_calls": io["syscr"] + io["syscw"],
            "copied": io["rchar"] + io["wchar"],
            "qemu_switches": switches,
            "qemu_seconds": sum(map(int, seconds)) / os.sysconf("SC_CLK_TCK"),
            **self._kvm(),
        }

    def _kvm(self) -> dict[str, float]:
        """Exits and injected interrupts; empty without KVM or its counters."""
        found = Counter[str]()
        for directory in KVM_COUNTERS.glob(f"{self.pid}-*") if KVM_COUNTERS.exists() else ():
            for theirs, ours in _KVM_NAMES.items():
                if (file := directory / theirs).exists():
                    found[ours] += int(file.read_text())
        return dict(found)

    @property
    def log(self) -> Path:
        """Where libvirt has QEMU write its messages."""
        return self.host / "log" / "qemu" / f"{self.node}.log"

    def trace(self, enable: bool) -> None:
        """Has QEMU write a line at each of its trace points, or stop it. Failed."""
        for event in _EVENTS:
            arguments = {"name": event, "enable": enable}
            command = json.dumps({"execute": "trace-event-set-state", "arguments": arguments})
            socket = f"{self.host}/run/libvirt/libvirt-sock"
            words = ["virsh", "-c", f"qemu+unix:///system?socket={socket}", "qemu-monitor-command", self.node, command]
            done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
            if done.returncode or '"error"' in done.stdout:
                why = (done.stderr or done.stdout).strip()
                raise Failed(Code.FAILED, f"QEMU of {self.node} does not trace {event}", why, "wherry doctor")


def card_events(text: str) -> dict[str, float]:
    """Events of network cards in QEMU's trace: accesses to registers, queues announced, interrupts asked for."""
    lines = text.splitlines()
    return {
        "accesses": sum("memory_region_ops_" in line and _CARD.search(line) is not None for line in lines),
        "kicks": sum("virtio_queue_notify" in line for line in lines),
        "notified": sum("virtio_notify" in line for line in lines),
    }


def machines(testbed: Testbed, cluster: ClusterShape) -> list[Machine]:
    """The QEMUs of a cluster's nodes, which is made when it is not there. Raises RunFailed when one has gone."""
    testbed.ensure_cluster(cluster)
    found = []
    for node in testbed.client.nodes(cluster.name):
        host = instance().run / "vm" / node.host
        try:
            pid = int((host / "run" / "libvirt" / "qemu" / f"{node.name}.pid").read_text())
        except (OSError, ValueError) as error:
            raise RunFailed(f"the QEMU of {node.name} is not found: {error}") from None
        found.append(Machine(node.name, host, pid))
    return found


@contextmanager
def traced(those: Sequence[Machine]) -> Iterator[None]:
    """Meanwhile the machines' trace points are on. Their output is removed: a log may be in memory."""
    sizes = [(machine, machine.log.stat().st_size) for machine in those]
    with ExitStack() as stack:
        for machine, size in sizes:
            stack.callback(os.truncate, machine.log, size)
            stack.callback(machine.trace, False)
            machine.trace(True)
        yield


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    """Lines `NAME: VALUE` of a file; none when its thread has ended."""
    try:
        text = file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name, value.strip()
