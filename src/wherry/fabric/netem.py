"""Latency by the kernel's netem (tc-netem(8)) on a veth pair, without a process and without copies.

Invariant: it is used only where it is equivalent to `wherry-link`, which is for latency alone. With jitter netem
reorders frames, and it drops and queues an unsegmented (GSO) frame of up to 64 KiB as one.
"""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

from wherry.fabric.protocol import Traffic
from wherry.fabric.run_program import output_of, succeeds
from wherry.model.spec.fabric import LinkSpec

_LIMIT = 100_000
"""Frames that may be in flight: more than any sender's window."""


def fits(link: LinkSpec) -> bool:
    """True when the link is latency alone and the kernel has netem."""
    ways = link.directions()
    more = any(one.jitter or one.loss or one.bandwidth is not None for one in ways)
    return any(one.latency for one in ways) and not more and available()


@functools.cache
def available() -> bool:
    """True when the kernel has netem, as probed in a temporary namespace."""
    if not shutil.which("tc") or not shutil.which("unshare"):
        return False
    words = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    return succeeds(words)


def set_latency(end: tuple[str, str], seconds: float) -> None:
    """Delays the frames that leave through this end of the pair, given by its namespace's path and its name."""
    netns, wire = end
    _tc(
        netns, "qdisc", "replace", "dev", wire, "root", "netem", "limit", str(_LIMIT), "delay", f"{seconds * 1e6:.0f}us"
    )


def clear(end: tuple[str, str]) -> None:
    """Removes the delay, if there is one."""
    netns, wire = end
    if any(found["kind"] == "netem" for found in _shown(netns, wire)):
        _tc(netns, "qdisc", "del", "dev", wire, "root")


def traffic(end: tuple[str, str]) -> Traffic | None:
    """Counters of the frames that left through this end."""
    for found in _shown(*end):
        if found["kind"] == "netem":
            return Traffic(
                frames=found["packets"], bytes=found["bytes"], dropped=found["drops"], waiting=found["backlog"]
            )
    return None


def _shown(netns: str, wire: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_tc(netns, "-s", "-j", "qdisc", "show", "dev", wire) or "[]")
    return found


def _tc(netns: str, *words: str) -> str:
    return output_of(["tc", "-n", Path(netns).name, *words], f"tc {' '.join(words)} failed", "wherry doctor")
