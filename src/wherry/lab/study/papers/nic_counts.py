"""The origin of the degradation in the report of `nic-degradation`: events for each message, beside its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wherry.lab.report import figures
from wherry.lab.report.page import Table
from wherry.lab.report.statistics import median
from wherry.lab.study.levels import Combination, Level
from wherry.lab.study.message_counts import PREFIX
from wherry.lab.study.requirements import KVM, KVM_COUNTS
from wherry.lab.study.results import Results

_NONE = "-"
_COLUMNS = (
    ("frames", "frames"),
    ("card_interrupts", "interrupts of the card"),
    ("switches", "switches"),
    ("softirqs", "softirqs"),
    ("accesses", "accesses to registers"),
    ("kicks", "queues announced"),
    ("kvm_exits", "exits"),
    ("system_calls", "system calls of QEMU"),
    ("qemu_switches", "switches of QEMU"),
    ("qemu_seconds", "CPU of QEMU, us"),
)
"""Metric without prefix, and its column."""


def combination(nic: str) -> Combination:
    """The combination whose runs count events."""
    return Combination.of(nic=nic, tool="counts", mpi="openmpi")


def tables(
    results: Results, levels: Sequence[Level], virtual_machines: Sequence[str], sizes: Sequence[int]
) -> Iterator[Table]:
    """Counts beside times by size of the messages, and events that are not counted. `virtual_machines` are the names of
    the levels with VMs."""
    rows = []
    for level in levels:
        one, inside_vm = combination(level.name), level.name in virtual_machines
        for size in sizes:
            times = results.values(one, "latency_median", size)
            if times:
                cells = (_cell(results, one, name, size, inside_vm) for name, _ in _COLUMNS)
                copied = _copied(results, one, size)
                time = median([1e6 * y for y in times]).text()
                rows.append((level.text, figures.size_text(size), time, *cells, copied))
    head = ("between", "size", "time, us", *(text for _, text in _COLUMNS), "bytes through QEMU : sent")
    title = "Where the time goes: events for each message, one way, both ends together (Open MPI)"
    yield Table(title, head, rows, main=True)
    yield Table("Events that are not counted here", ("what", "why"), list(_not_counted(results)))


def _cell(results: Results, one: Combination, name: str, size: float, inside_vm: bool) -> str:
    if name == "switches" and not inside_vm:
        name = "own_switches"
    values = results.values(one, f"{PREFIX}{name}", size)
    return f"{median(values).value * (1e6 if name.endswith('seconds') else 1):.3g}" if values else _NONE


def _copied(results: Results, one: Combination, size: float) -> str:
    values = results.values(one, f"{PREFIX}copied", size)
    return f"{median(values).value / size:.3g}" if values else _NONE


def _not_counted(results: Results) -> Iterator[tuple[str, str]]:
    lacks = results.study.unavailable
    if why := lacks.get(KVM, "") or lacks.get(KVM_COUNTS, ""):
        yield "exits of a guest to its hypervisor", f"{why}; accesses to registers would be exits"
    yield "queues announced to adapters other than virtio", "they have none: their registers are written instead"
    yield "queues announced to vhost-net", "the kernel gets them, and QEMU does not"
    yield (
        "interrupts and frames of a card, natively and in containers",
        "loopback and pairs of veth have no card; their frames are counted, and switches are those of the two ranks",
    )
    yield "softirqs natively and in containers", "the machine counts them for all that runs on it"
    yield (
        "copies within a guest's kernel, and within QEMU for adapters other than virtio",
        "no counter has them: a profile (perf) would; bytes through QEMU are those of its system calls",
    )
    yield "system calls of the kernel's own threads (vhost-net)", "the kernel makes none"


def remarks(messages: int) -> list[str]:
    """How events were counted."""
    return [
        f"Events are counted over {messages} messages of each size (20 of those above 1 KiB), in runs of their own. In "
        "a virtual machine switches, softirqs and interrupts are the guest's (/proc/interrupts by the card's numbers, "
        "/proc/softirqs, /proc/stat), elsewhere switches are those of the ranks. System calls and bytes are QEMU's "
        "reads and writes (/proc/PID/io), accesses to registers and announced queues are QEMU's trace points, which "
        "are on in a second job; the events of an exchange of nothing are subtracted.",
    ]
