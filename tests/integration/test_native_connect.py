"""wherry-connect, as built: bytes in both directions, ends, and connections that do not come about."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import waiting
from wherry.base.paths import native_program


@contextmanager
def peer(serve: Callable[[socket.socket], None], family: socket.AddressFamily = socket.AF_INET) -> Iterator[int]:
    """The port of a server of one connection, on loopback."""
    with socket.create_server(("::1" if family is socket.AF_INET6 else "127.0.0.1", 0), family=family) as listening:

        def run() -> None:
            with listening.accept()[0] as connection:
                serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(waiting.bound())
        assert not thread.is_alive()


def run(address: str, port: int | str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [str(native_program("wherry-connect")), address, str(port)]
    return subprocess.run(command, input=given, capture_output=True, timeout=waiting.bound(), check=False)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_bytes_go_both_ways_and_the_end_is_passed_on(address: str) -> None:
    """The server answers when the client has ended: more than sockets and pipes hold."""
    data = os.urandom(3 << 20)

    def echo(connection: socket.socket) -> None:
        parts = []
        while piece := connection.recv(1 << 16):
            parts.append(piece)
        connection.sendall(b"".join(parts))

    with peer(echo, socket.AF_INET6 if address == "::1" else socket.AF_INET) as port:
        done = run(address, port, data)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"+" + data, b"")


def test_it_ends_with_the_other_side() -> None:
    command = [str(native_program("wherry-connect")), "127.0.0.1"]
    with peer(lambda connection: connection.sendall(b"bye")) as port:
        with subprocess.Popen([*command, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            assert process.stdout.read() == b"+bye"
            assert process.wait(waiting.bound()) == 0


def test_a_reset_is_an_error() -> None:
    def reset(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with peer(reset) as port:
        done = run("127.0.0.1", port, b"x")
    assert done.returncode == 1 and done.stdout == b"+" and b"Connection reset" in done.stderr


@pytest.mark.parametrize(
    ("address", "port", "code", "why"),
    [
        ("127.0.0.1", "1", 1, b"Connection refused"), ("example", "80", 1, b"Invalid argument"),
        ("127.0.0.1", "65536", 2, b"usage"), ("127.0.0.1", "-1", 2, b"usage"),
    ],
)  # fmt: skip
def test_no_connection(address: str, port: str, code: int, why: bytes) -> None:
    done = run(address, port)
    assert (done.returncode, done.stdout) == (code, b"") and why in done.stderr
