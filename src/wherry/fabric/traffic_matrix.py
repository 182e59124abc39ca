"""How much nodes send to each other, and how often they wait for it, counted by the kernel: rules of nftables in the
bridges of each host, for frames of TCP that carry data.

    frame from one to other that comes from a port:  pairs[one, other] + 1
    and where one of the two is far:
      asked[other, one]?       --> turns[other, one] + 1, no longer asked
      if it comes from a port: --> asked[one, other]

A frame is counted once, where it leaves its node, as large as the node's kernel makes it (up to 64 KiB), so frames are
close to messages. Bare acknowledgements are not counted. A *turn* is a frame that its receiver may have waited for: the
first since it sent something to the other itself. A stream of messages one way has many frames and one turn. The kernel
takes removed elements of a set away only after a while, and until then they are in the way: so turns are counted for
nodes so far away that there cannot be many in a second.

Invariants: counting never stands in a frame's way; the numbers of a host only grow as long as somebody reads them,
wherever its nodes go; who stops reading last takes the rules away, so frames that nobody counts cost nothing.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from wherry.base.errors import WherryError
from wherry.fabric.nft import nft

_BARE = 52
"""Bytes of an IPv4 packet with TCP's usual timestamps and no data."""
_MOST, _ASKED = 16384, 8192
"""Pairs that a host counts (60 nodes of a cluster of 250 have 15,000), and that wait for a turn there or had one in the
last tenth of a second. Tables are made for so many at once, and the kernel walks through each of them whenever it looks
for what was removed: that of `asked`, ten times a second, may not be larger than a processor's cache has room for."""
_KEY = "typeof ether saddr . ether daddr;"
_SET = f"{_KEY} size {_MOST};"
_RULES = f"""\
add table bridge wherry
flush table bridge wherry
add set bridge wherry pairs {{ {_SET} flags dynamic; counter; }}
add set bridge wherry turns {{ {_SET} flags dynamic; counter; }}
add set bridge wherry asked {{ {_KEY} size {_ASKED}; flags dynamic,timeout; timeout 1m; gc-interval 100ms; }}
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
_lock = threading.Lock()
"""Held from the look whether a host counts to its rules: two that look at once would have each frame counted twice."""
_readers = Counter[str]()
"""How many read the counters of a host, by the path of its network namespace. A daemon that was killed leaves rules
behind: they are used again, and gone with the host or when the next reader stops."""
Pair = tuple[str, str]
"""MAC of who sends, MAC of who receives."""


class Count(NamedTuple):
    """Frames and bytes from the first to the second, and how many of the frames were turns of the second."""

    frames: int
    bytes: int
    turns: int


class TrafficMatrix:
    """The counters of some hosts. Who reads them closes them."""

    def __init__(self) -> None:
        self._counting = set[str]()

    def read(self, far: Mapping[str, frozenset[str]]) -> dict[Pair, Count]:
        """By pair, since the first reading, which begins the counting. UNSUPPORTED when this machine cannot count.

        `far` has the MACs that are far from a host, by the path of its network namespace: turns with them are counted
        from then on.
        """
        frames, size, turns = Counter[Pair](), Counter[Pair](), Counter[Pair]()
        for netns, macs in far.items():
            if netns not in self._counting:
                with _lock:
                    if "table bridge wherry" not in nft(netns, "list", "tables", "bridge"):
                        nft(netns, "-f", "-", text=_RULES)
                    _readers[netns] += 1
                self._counting.add(netns)
            sets = _sets(nft(netns, "-j", "list", "table", "bridge", "wherry"))
            if frozenset(sets.get("far", ())) != macs:  # another look may have had other nodes in mind
                wanted = [f"add element bridge wherry far {{ {', '.join(sorted(macs))} }}"] if macs else []
                nft(netns, "-f", "-", text="\n".join(["flush set bridge wherry far", *wanted, ""]))
            for name, (one, other), (count, length) in _counted(sets):
                if name == "pairs":
                    frames[one, other] += count
                    size[one, other] += length
                elif name == "turns":
                    turns[other, one] += count
        return {pair: Count(frames[pair], size[pair], turns[pair]) for pair in frames}

    def close(self) -> None:
        """Nobody counts any more for this reader."""
        with _lock:
            for netns in self._counting:
                _readers[netns] -= 1
                if not _readers[netns]:
                    del _readers[netns]
                    with suppress(WherryError, OSError):  # the host is gone
                        nft(netns, "delete", "table", "bridge", "wherry")
            self._counting.clear()


def _sets(text: str) -> dict[str, list[Any]]:
    """The elements of each set, from nft's JSON."""
    document: dict[str, Any] = json.loads(text)
    return {part["set"]["name"]: part["set"].get("elem", []) for part in document["nftables"] if "set" in part}


def _counted(sets: Mapping[str, list[Any]]) -> Iterator[tuple[str, Pair, tuple[int, int]]]:
    """The elements that count: name of the set, key, frames and bytes."""
    for name, elements in sets.items():
        for element in elements:
            inner = element.get("elem", {}) if isinstance(element, dict) else {}
            if counter := inner.get("counter"):
                one, other = inner["val"]["concat"]
                yield name, (one, other), (counter["packets"], counter["bytes"])
