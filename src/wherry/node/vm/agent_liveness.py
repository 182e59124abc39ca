"""Liveness probe of a node's agent.

The agent sends a challenge as soon as a client connects (native/include/wherry/wire.h); one received byte is proof.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from wherry.base.errors import Code, LostContact
from wherry.model.records import CONTROL_PORT
from wherry.node.netns_socket import in_netns
from wherry.node.protocol import Placement

_ANSWER_TIMEOUT = 60.0
"""Seconds that the agent may take to answer after a move."""
_FIRST_TIMEOUT, _MAX_TIMEOUT = 0.25, 8.0
"""Timeout of the first attempt, doubled up to the longest: short at first, as a bridge that has not learned the node's
port may drop a frame; longer later, as a node on a busy host is slow."""
_PAUSE = 0.01
"""Seconds between two attempts."""


def answers(placement: Placement, seconds: float) -> bool:
    """True when the node's agent answers within `seconds`, over a connection from the placement's namespace."""
    deadline = time.monotonic() + seconds
    try:
        with in_netns(placement.netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as connection:
            connection.settimeout(seconds)
            connection.connect((placement.node.address, CONTROL_PORT))
            connection.settimeout(max(deadline - time.monotonic(), 0.01))
            return connection.recv(1) == b"C"
    except OSError:
        return False


def await_answer(placement: Placement, console_tail: Callable[[Placement], str]) -> float:
    """Seconds until the agent of a thawed node answers. LostContact, with the end of its console, when it does not."""
    began, timeout = time.monotonic(), _FIRST_TIMEOUT
    while (waited := time.monotonic() - began) < _ANSWER_TIMEOUT:
        if answers(placement, min(timeout, _ANSWER_TIMEOUT - waited)):
            return time.monotonic() - began
        time.sleep(_PAUSE)
        timeout = min(2 * timeout, _MAX_TIMEOUT)
    name = placement.node.name
    what = f"node {name} does not answer on {placement.host}"
    why = f"waited {_ANSWER_TIMEOUT:.0f} s; its console: {console_tail(placement)}"
    raise LostContact(Code.UNREACHABLE, what, why, f"wherry logs --node {name}")
