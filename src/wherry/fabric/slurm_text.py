"""The output of the programs of Slurm, in formats that all its versions since 20.11 have.

Pure. Invariant: whatever is read, a value is returned or Unreadable is raised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

JOB_FORMAT = "%i|%T|%L|%N|%r|%k"
"""Of squeue: number, state, time left, nodes, why it waits, comment."""
_TIME = re.compile(r"(?:(?:([0-9]{1,6})-)?([0-9]{1,4}):)?([0-9]{1,4}):([0-9]{1,2})", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)
_SUBMITTED = re.compile(r"([0-9]{1,10})(?:;[^\s;]{1,64})?\s*", re.ASCII)
_KEY = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_]{0,40})=", re.ASCII)
_STATE = re.compile(r"([A-Z_]+)([^A-Z_]*)", re.ASCII)
_NONE = ("", "(null)", "N/A", "None")
_FAILED = frozenset(("DOWN", "FAIL", "ERROR", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT"))
_LEAVING = frozenset(("DRAIN", "DRAINED", "DRAINING", "FAILING", "MAINT", "MAINTENANCE"))


class Unreadable(ValueError):
    """The output of a program is not as expected."""


@dataclass(frozen=True)
class SlurmJob:
    """A job: its number, its state, the seconds that are left (None: no limit, or not known), its nodes in Slurm's own
    short form (`h[1-3]`), why it waits, and its comment."""

    id: int
    state: str
    left: float | None
    nodes: str
    reason: str
    comment: str

    @property
    def runs(self) -> bool:
        """Whether its nodes are allocated."""
        return self.state in ("RUNNING", "SUSPENDED")

    @property
    def waits(self) -> bool:
        """Whether its nodes may still be allocated."""
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")


@dataclass(frozen=True)
class SlurmNode:
    """A node: its name, its address, its processors, its memory in bytes, the words of its state, and why."""

    name: str
    address: str
    cpus: int
    memory: int
    states: frozenset[str]
    reason: str
    partitions: tuple[str, ...]

    @property
    def trouble(self) -> str:
        """Slurm's text when the node failed, or is to be left: `DOWN, disk is bad`. Empty when nothing is wrong."""
        words = sorted(self.states & (_FAILED | _LEAVING))
        return ", ".join([*words, self.reason] if self.reason else words) if words else ""


def parse_jobs(text: str) -> list[SlurmJob]:
    """The jobs that squeue printed by JOB_FORMAT, without a header."""
    jobs = []
    for line in text.splitlines():
        if not line.strip():
            continue
        parts = line.split("|", 5)
        number = _NUMBER.match(parts[0].strip())
        if len(parts) != 6 or not number:
            raise Unreadable(f"squeue printed {line[:80]!r}")
        _, state, left, nodes, reason, comment = (part.strip() for part in parts)
        jobs.append(SlurmJob(int(number[0]), state, parse_left(left), _value(nodes), _value(reason), _value(comment)))
    return jobs


def parse_left(text: str) -> float | None:
    """Seconds of `2-03:04:05`, `03:04:05` or `9:58`; 0 when the time is over (INVALID), None when there is no limit."""
    if text in ("UNLIMITED", "NOT_SET", "N/A", ""):
        return None
    if text == "INVALID" or text.startswith("-"):
        return 0.0
    found = _TIME.fullmatch(text)
    if not found:
        raise Unreadable(f"squeue printed {text[:40]!r} as the time that is left")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_submitted(text: str) -> int:
    """The number of the job that `sbatch --parsable` printed: `12`, or `12;cluster`."""
    found = _SUBMITTED.fullmatch(text)
    if not found:
        raise Unreadable(f"sbatch printed {text[:80]!r}")
    return int(found[1])


def parse_nodes(text: str) -> list[SlurmNode]:
    """The nodes that `scontrol --oneliner show node` printed."""
    return [_node(line) for line in text.splitlines() if line.strip()]


def parse_names(text: str) -> list[str]:
    """The names that `scontrol show hostnames` printed."""
    return text.split()


def _node(line: str) -> SlurmNode:
    keys = list(_KEY.finditer(line))
    ends = [*(key.start() for key in keys), len(line)][1:]
    values = dict[str, str]()
    for key, end in zip(keys, ends, strict=True):
        if key[1] == "Reason":  # people write it, and it may look like further keys
            values.setdefault("Reason", line[key.end() :].strip())
            break
        values.setdefault(key[1], line[key.end() : end].strip())
    missing = [key for key in ("NodeName", "CPUTot", "RealMemory", "State") if key not in values]
    if missing:
        raise Unreadable(f"scontrol printed a node without {', '.join(missing)}: {line[:80]!r}")
    numbers = {key: _NUMBER.fullmatch(values[key]) for key in ("CPUTot", "RealMemory")}
    if wrong := [key for key, found in numbers.items() if not found]:
        raise Unreadable(f"scontrol printed {wrong[0]}={values[wrong[0]][:40]!r}")
    reason = re.sub(r"\s*\[[^\[\]]*\]$", "", _value(values.get("Reason", "")))  # its writer, and the time
    return SlurmNode(
        name=values["NodeName"],
        address=_value(values.get("NodeAddr", "")) or values["NodeName"],
        cpus=int(values["CPUTot"]),
        memory=int(values["RealMemory"]) << 20,
        states=_states(values["State"]),
        reason=reason,
        partitions=tuple(part for part in _value(values.get("Partitions", "")).split(",") if part),
    )


def _states(text: str) -> frozenset[str]:
    """The words of `ALLOCATED+DRAIN*`; the star of a node that does not answer is a word, too."""
    words = set[str]()
    for part in text.split("+"):
        found = _STATE.fullmatch(part)
        if not found:
            raise Unreadable(f"scontrol printed State={text[:40]!r}")
        words.add(found[1])
        if "*" in found[2]:
            words.add("NOT_RESPONDING")
    return frozenset(words)


def _value(text: str) -> str:
    return "" if text in _NONE else text
