"""The kernel's patience with a connection of a move whose receiver gets no processor (docs/design/0032-bounds.md)."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

import waiting
from wherry.node import netns_socket

BUSY = 15.0
"""Seconds in which nobody reads. The kernel gave up after ten, as it counts the time of a closed window."""
MOST = 256 << 20
"""Bytes: more than the buffers of both ends take."""


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has buffers of this size")
def test_a_receiver_that_reads_nothing_for_a_while_loses_no_connection() -> None:
    sent, errors = [0], list[OSError]()

    def send(end: socket.socket) -> None:
        try:
            while sent[0] < MOST:
                sent[0] += end.send(bytes(1 << 20))
            end.shutdown(socket.SHUT_WR)
        except OSError as error:
            errors.append(error)

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        netns_socket.tune(near, sends=True)
        netns_socket.tune(far, sends=False)
        sender = threading.Thread(target=send, args=(near,), daemon=True)
        sender.start()
        time.sleep(BUSY)
        assert not errors and 0 < sent[0] < MOST, "the sender was not held by a closed window"
        received = 0
        with waiting.no_hang():
            while piece := far.recv(1 << 20):
                received += len(piece)
            sender.join()
    assert not errors and received == sent[0] >= MOST
