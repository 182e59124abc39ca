"""TCP ports whose number a test passes to a program."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved(address: str = "127.0.0.1") -> Iterator[int]:
    """A port at which nobody listens, and which the kernel gives to nobody until the end of the block, as a socket is
    bound to it that does not listen. A program that gets its number can listen there, again and again, if it sets
    SO_REUSEADDR as all of our programs do; otherwise connections are refused."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((address, 0))
        yield kept.getsockname()[1]
