"""The largest packet that the network carries to other machines, found by echoes (ICMP) of that size.

Invariant: packets are sent whole or not at all (Don't Fragment), so an answer shows that one of this size has arrived.
A machine that answers no echo of any size is behind a filter, and is taken to receive Ethernet's usual packets.
"""

from __future__ import annotations

import errno
import secrets
import select
import socket
import struct
import time
from collections.abc import Collection

from wherry.base.errors import Code, Refused

LEAST = 1280
"""Bytes of the largest packets of a network that clusters can use, at least."""
USUAL = 1500
MOST = 9216
"""Largest size that is tried: Ethernet's jumbo frames have no more."""
_SIZES = (LEAST, 1340, 1376, 1400, 1420, 1440, 1450, 1460, 1476, 1480, 1492, USUAL, 4000, 8900, 8950, 9000)
"""Sizes of networks, and of tunnels in them."""
_SMALL = 64
_TRIES, _SECONDS = 3, 1.0
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
"""linux/in.h: never fragment, and send whatever the kernel has learnt of the way."""
_ECHO, _ECHO_REPLY, _HEADERS = 8, 0, 28


def largest(to: Collection[str], link: int) -> int:
    """Bytes of the largest packet that all of these addresses receive: `link`, the MTU of this machine's own network,
    or the next smaller usual size that they do. Refused when that is less than LEAST."""
    answering = frozenset(to) - _silent(frozenset(to), _SMALL)
    highest = min(link, MOST if len(answering) == len(frozenset(to)) else USUAL)
    sizes = [*(size for size in _SIZES if size < highest), highest]
    low, high = 0, len(sizes)
    middle = high - 1  # the highest first, which passes nearly always
    while low < high:
        if _silent(answering, sizes[middle]):
            high = middle
        else:
            low = middle + 1
        middle = (low + high) // 2
    if low == 0 or sizes[low - 1] < LEAST:
        what = f"the network to {', '.join(sorted(to))} is not fit for clusters"
        raise Refused(Code.UNSUPPORTED, what, f"it carries no packets of {LEAST} bytes", f"ping -M do -s {LEAST - 28}")
    return sizes[low - 1]


def _silent(to: frozenset[str], size: int) -> frozenset[str]:
    """The addresses that do not answer an echo of so many bytes."""
    word = secrets.randbits(16)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as probe:
        probe.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
        for number in range(_TRIES):
            for address in to:
                try:
                    probe.sendto(_echo(word, number, size), (address, 0))
                except OSError as error:
                    if error.errno not in (errno.EMSGSIZE, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENOBUFS):
                        raise
            to = _without_answers(probe, word, size, to)
            if not to:
                break
    return to


def _without_answers(probe: socket.socket, word: int, size: int, to: frozenset[str]) -> frozenset[str]:
    """The addresses that have not answered when the time is over; none as soon as all have."""
    deadline = time.monotonic() + _SECONDS
    while to and select.select([probe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        packet, (address, _) = probe.recvfrom(1 << 16)
        kind, _, _, whose, _ = struct.unpack_from("!BBHHH", packet, (packet[0] & 15) * 4)
        if (kind, whose, len(packet)) == (_ECHO_REPLY, word, size):
            to -= {address}
    return to


def _echo(word: int, number: int, size: int) -> bytes:
    """An echo request whose packet has `size` bytes; its data, all zero, add nothing to the sum (RFC 792)."""
    total = (_ECHO << 8) + word + number
    return struct.pack("!BBHHH", _ECHO, 0, ~(total + (total >> 16)) & 0xFFFF, word, number) + bytes(size - _HEADERS)
