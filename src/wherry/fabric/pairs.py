"""How much nodes send to each other, counted by the kernel: a rule of nftables in the bridges of each host.

    table bridge wherry
      chain: frame from a port (p*), TCP with data --> set element (source MAC, destination MAC): frames, bytes

A frame is counted once, where it leaves its node, as large as the node's kernel makes it (up to 64 KiB), so frames are
close to messages. Bare acknowledgements are not counted. Invariants: counting never stands in a frame's way; the
numbers of a host only grow until the host is gone, wherever its nodes go.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from typing import Any

from wherry.base.errors import Code, Failed, Refused
from wherry.fabric import namespaces

_BARE = 52
"""Bytes of an IPv4 packet with TCP's usual timestamps and no data."""
_MOST = 65536
"""Pairs that a host counts: a cluster of 250 nodes has 62,500."""
_RULES = f"""\
add table bridge wherry
add set bridge wherry pairs {{ typeof ether saddr . ether daddr; size {_MOST}; flags dynamic; counter; }}
add chain bridge wherry count {{ type filter hook prerouting priority -200; policy accept; }}
flush chain bridge wherry count
add rule bridge wherry count iifname != "p*" return
add rule bridge wherry count ip protocol tcp ip length > {_BARE} update @pairs {{ ether saddr . ether daddr }}
"""
_SECONDS = 20
Pair = tuple[str, str]
"""MAC of who sends, MAC of who receives."""


class Pairs:
    """The counters of some hosts, by the paths of their network namespaces."""

    def __init__(self, netns: Iterable[str]) -> None:
        self._netns = list(netns)
        self._ready: set[str] = set()

    def read(self) -> dict[Pair, tuple[int, int]]:
        """Frames and bytes by pair since the first reading, which begins the counting.

        UNSUPPORTED when this machine cannot count.
        """
        frames, size = Counter[Pair](), Counter[Pair]()
        for netns in self._netns:
            if netns not in self._ready and "wherry" not in _nft(netns, "list", "tables", "bridge"):
                _nft(netns, "-f", "-", text=_RULES)
            self._ready.add(netns)
            for pair, (count, length) in _elements(_nft(netns, "-j", "list", "set", "bridge", "wherry", "pairs")):
                frames[pair] += count
                size[pair] += length
        return {pair: (frames[pair], size[pair]) for pair in frames}


def _elements(text: str) -> list[tuple[Pair, tuple[int, int]]]:
    """The elements of the set in nft's JSON."""
    document: dict[str, Any] = json.loads(text)
    found = []
    for part in document["nftables"]:
        for element in part.get("set", {}).get("elem", []):
            one, other = element["elem"]["val"]["concat"]
            counter = element["elem"]["counter"]
            found.append(((one, other), (counter["packets"], counter["bytes"])))
    return found


def _nft(netns: str, *words: str, text: str = "") -> str:
    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nft", *words], input=text, capture_output=True, text=True, timeout=_SECONDS, check=False
        )

    try:
        done = namespaces.inside(netns, run)
    except FileNotFoundError:
        raise _unsupported("there is no program nft") from None
    except subprocess.TimeoutExpired:
        raise Failed(Code.TIMED_OUT, "nft did not end", f"{_SECONDS} s in {netns}", "wherry doctor") from None
    if done.returncode:
        raise _unsupported(done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"exit {done.returncode}")
    return done.stdout


def _unsupported(why: str) -> Refused:
    what = "messages between nodes cannot be counted on this machine"
    return Refused(Code.UNSUPPORTED, what, f"nftables in a bridge: {why}", "make setup")
