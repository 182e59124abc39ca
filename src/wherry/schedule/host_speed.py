"""The speed that a host gives to each CPU of new nodes: its declared one, less the CPUs in use on it already.

Pure. Invariant: without a measured load, and with CPUs to spare, it is the declared speed, so hosts of one kind are
equal and the order of their declaration decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wherry.model.records import Host

_STEP = 0.05
"""Speeds differ in steps of this size: a daemon that wakes now and then makes no host a slower one."""
_MIN_SHARE = 0.02
"""Part of a host that is left for nodes, whatever uses it."""
_NOISE = 0.15
"""Part of a host below which a load is not one: it was measured for a moment, and something always wakes."""

Loads = Mapping[str, float]
"""CPUs in use, by host; hosts without a measurement are missing."""


@dataclass(frozen=True)
class Place:
    """A host, and why it was chosen, in a few words."""

    host: str
    why: str


def speed_left(host: Host, loads: Loads, asked: float) -> float:
    """The speed of each CPU of nodes that ask the host for `asked` CPUs beside those in use: 1 is an unshared core of
    the fastest host."""
    used, whole = loads.get(host.name, 0.0), host.cores * host.speed
    left = max(whole - (used if used >= _NOISE * whole else 0.0), _MIN_SHARE * host.cores)
    return min(host.speed, left / asked) if asked > 0 else host.speed


def class_of(speed: float) -> int:
    """Speeds with the same number are taken for equal."""
    return round(speed / _STEP)


def described(host: Host, loads: Loads, asked: float, nodes: int | None = None) -> str:
    """The figures that decide on a host."""
    words = [f"speed {host.speed:g}"]
    if host.name in loads:
        words.append(f"{loads[host.name]:.1f} of {host.cores:g} CPUs in use")
    if nodes is not None:
        words.append(f"{nodes} node{'' if nodes == 1 else 's'} there")
    left = speed_left(host, loads, asked)
    if class_of(left) != class_of(host.speed):
        words.append(f"leaves {left:.2f} for each CPU")
    return ", ".join(words)
