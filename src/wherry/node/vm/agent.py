"""Does a node's agent answer? The shortest talk with it; its protocol is in native/include/wherry/wire.h.

-> H key    who asks
-> P        <- P number of its children
"""

from __future__ import annotations

import socket
import struct
import time

from wherry.node.channel import in_netns
from wherry.node.protocol import CONTROL_PORT, Place

_HEADER = struct.Struct(">cI")


def answers(place: Place, seconds: float) -> bool:
    """True when the node's agent answers within so many seconds, asked from the place's namespace."""
    deadline = time.monotonic() + seconds
    try:
        with in_netns(place.netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as asking:
            asking.settimeout(seconds)
            asking.connect((place.node.address, CONTROL_PORT))
            key = place.key.get_secret_value().encode()
            asking.sendall(_HEADER.pack(b"H", len(key)) + key + _HEADER.pack(b"P", 0))
            asking.settimeout(max(deadline - time.monotonic(), 0.01))
            return asking.recv(1) == b"P"
    except OSError:
        return False
