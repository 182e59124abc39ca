"""Does a node's agent answer? To whoever connects it says the first word (native/include/wherry/wire.h); that does."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from wherry.base.errors import Code, LostContact
from wherry.model.objects import CONTROL_PORT
from wherry.node.netns_socket import in_netns
from wherry.node.protocol import Placement

_PATIENCE = 60.0
"""Seconds that the agent gets to answer after a move."""
_FIRST, _LONGEST = 0.25, 8.0
"""Seconds of the first try, doubled for each further one: what was lost in a bridge that does not know the node yet is
asked again soon, and a node that is slow for its busy host gets time to answer."""
_PAUSE = 0.01
"""Seconds between two tries."""


def answers(place: Placement, seconds: float) -> bool:
    """True when the node's agent answers within so many seconds, asked from the place's namespace."""
    deadline = time.monotonic() + seconds
    try:
        with in_netns(place.netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as asking:
            asking.settimeout(seconds)
            asking.connect((place.node.address, CONTROL_PORT))
            asking.settimeout(max(deadline - time.monotonic(), 0.01))
            return asking.recv(1) == b"C"
    except OSError:
        return False


def await_answer(place: Placement, console_tail: Callable[[Placement], str]) -> float:
    """Seconds until the agent of a node that was just thawed answers. LostContact, with its console's end, if never."""
    began, patience = time.monotonic(), _FIRST
    while (waited := time.monotonic() - began) < _PATIENCE:
        if answers(place, min(patience, _PATIENCE - waited)):
            return time.monotonic() - began
        time.sleep(_PAUSE)
        patience = min(2 * patience, _LONGEST)
    name = place.node.name
    what = f"node {name} does not answer on {place.host}"
    why = f"waited {_PATIENCE:.0f} s; its console: {console_tail(place)}"
    raise LostContact(Code.UNREACHABLE, what, why, f"wherry logs --node {name}")
