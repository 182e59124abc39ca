"""Traffic between nodes, and how often a node may have waited for it, counted by nftables rules in each host's bridges
for TCP frames with data.

    frame from one to other that comes from a port:  pairs[one, other] + 1
    and where one of the two is far:
      asked[other, one]?       --> turns[other, one] + 1, no longer asked
      if it comes from a port: --> asked[one, other]

A frame is counted once, where it leaves its node, before segmentation (up to 64 KiB), so frames are close to messages.
Bare acknowledgements are not counted. A *turn* is a frame for which its receiver may have waited: the first since the
receiver itself sent to the other. A one-way stream of messages has many frames and one turn. The kernel collects
removed elements of a set only after a while, and they slow down lookups until then: so turns are counted only between
distant nodes, which cannot have many per second.

Invariants: no rule drops or delays a frame; the counters of a host never decrease while it has a reader, even when
nodes move away; the last reader removes the rules, so uncounted frames cost nothing. While a host's frames are counted
they take its bridges, which are slower than the paths of `direct_forwarding` otherwise (0019).
"""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from wherry.base.errors import WherryError
from wherry.fabric.nft import nft

_BARE = 52
"""Bytes of an IPv4 packet with TCP's usual timestamps and no data."""
_MAX_PAIRS, _MAX_ASKED = 16384, 8192
"""Sizes of the sets: pairs that a host counts (60 nodes of a cluster of 250 have 15,000), and pairs in `asked`. The
kernel's garbage collection walks a whole set: that of `asked`, ten times a second, must fit into a processor's
cache."""
_KEY = "typeof ether saddr . ether daddr;"
_SET = f"{_KEY} size {_MAX_PAIRS};"
_RULES = f"""\
add table bridge wherry
flush table bridge wherry
add set bridge wherry pairs {{ {_SET} flags dynamic; counter; }}
add set bridge wherry turns {{ {_SET} flags dynamic; counter; }}
add set bridge wherry asked {{ {_KEY} size {_MAX_ASKED}; flags dynamic,timeout; timeout 1m; gc-interval 100ms; }}
add set bridge wherry far {{ type ether_addr; }}
add chain bridge wherry turn
add rule bridge wherry turn ether daddr . ether saddr @asked update @turns {{ ether daddr . ether saddr }} \\
  delete @asked {{ ether daddr . ether saddr }}
add rule bridge wherry turn iifname "p*" add @asked {{ ether saddr . ether daddr }}
add chain bridge wherry data
add rule bridge wherry data iifname "p*" update @pairs {{ ether saddr . ether daddr }}
add rule bridge wherry data ether saddr @far goto turn
add rule bridge wherry data ether daddr @far goto turn
add chain bridge wherry count {{ type filter hook prerouting priority -200; policy accept; }}
add rule bridge wherry count ip protocol tcp ip length > {_BARE} jump data
"""
_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""By host, held while its rules are added or removed, so that the last reader removes none that a new one has just
found. One lock for each: nft of one host may take seconds, for which the readers of the others do not wait."""
_readers = Counter[str]()
"""Number of readers of a host's counters, by the path of its network namespace, changed under the host's lock. Rules
left by a killed daemon are used by the next reader, and removed with it or with the host."""
Pair = tuple[str, str]
"""MACs of sender and receiver."""


class Count(NamedTuple):
    """Frames and bytes from the first to the second, and how many of these frames were turns."""

    frames: int
    bytes: int
    turns: int


class TrafficMatrix:
    """One reader of the counters of some hosts. Must be closed."""

    def __init__(self, take_bridges: Callable[[str, bool], None]) -> None:
        """`take_bridges` is the fabric's."""
        self._take_bridges = take_bridges
        self._counting = set[str]()

    def read(self, far: Mapping[str, frozenset[str]]) -> dict[Pair, Count]:
        """Counts by pair since the first call, which installs the rules. UNSUPPORTED when this machine has no nftables.
        Frames are counted at the host that sends them, turns at the host that waited for them.

        `far` maps the path of a host's network namespace to the MACs that are distant from it: turns with them are
        counted from this call on.
        """
        frames, size, turns = Counter[Pair](), Counter[Pair](), Counter[Pair]()
        for netns, macs in far.items():
            if netns not in self._counting:
                with _locks[netns]:
                    if "table bridge wherry" not in nft(netns, "list", "tables", "bridge"):
                        nft(netns, "-f", "-", text=_RULES)
                    if not _readers[netns]:
                        self._take_bridges(netns, True)
                    _readers[netns] += 1
                self._counting.add(netns)
            sets = _sets(nft(netns, "-j", "list", "table", "bridge", "wherry"))
            if frozenset(sets.get("far", ())) != macs:  # another reader, or an earlier call, may have set others
                wanted = [f"add element bridge wherry far {{ {', '.join(sorted(macs))} }}"] if macs else []
                nft(netns, "-f", "-", text="\n".join(["flush set bridge wherry far", *wanted, ""]))
            for name, (one, other), (count, length) in _counted(sets):
                if name == "pairs":
                    frames[one, other] += count
                    size[one, other] += length
                elif name == "turns":
                    turns[other, one] += count
        return {pair: Count(frames[pair], size[pair], turns[pair]) for pair in {**frames, **turns}}

    def close(self) -> None:
        """Ends the reading; removes the rules of hosts that have no other reader."""
        while self._counting:
            netns = self._counting.pop()
            with _locks[netns]:
                _readers[netns] -= 1
                if not _readers[netns]:
                    del _readers[netns]
                    self._take_bridges(netns, False)
                    with suppress(WherryError, OSError):  # the host is gone
                        nft(netns, "delete", "table", "bridge", "wherry")


def _sets(text: str) -> dict[str, list[Any]]:
    """The elements of each set, from nft's JSON."""
    document: dict[str, Any] = json.loads(text)
    return {part["set"]["name"]: part["set"].get("elem", []) for part in document["nftables"] if "set" in part}


def _counted(sets: Mapping[str, list[Any]]) -> Iterator[tuple[str, Pair, tuple[int, int]]]:
    """The elements with a counter: name of the set, key, frames and bytes."""
    for name, elements in sets.items():
        for element in elements:
            inner = element.get("elem", {}) if isinstance(element, dict) else {}
            if counter := inner.get("counter"):
                one, other = inner["val"]["concat"]
                yield name, (one, other), (counter["packets"], counter["bytes"])
