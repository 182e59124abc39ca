"""Requests to the daemon, one connection each."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from wherry.client.transport import send

LARGE = b"x" * (8 << 20)
"""More than a socket's buffer takes."""
ANSWER = b"HTTP/1.1 503 Service Unavailable\r\nWherry-Version: 1\r\nContent-Length: 4\r\n\r\nbusy"


def test_an_answer_that_comes_before_the_body_was_read_is_the_answer(tmp_path: Path) -> None:
    """As a standby answers, which reads no body."""
    path = str(tmp_path / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def refuse() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(ANSWER)

    thread = threading.Thread(target=refuse)
    thread.start()
    try:
        answer = send(path, "POST", "/v1/clusters", LARGE, {})
    finally:
        thread.join()
        listener.close()
    assert (answer.status, answer.version, answer.body) == (503, "1", b"busy")
