"""Sockets of systemd: variables, listeners, clients that wait. With a daemon: tests/system/test_systemd_socket.py."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from wherry.base import socket_activation


def listener(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    made.listen()
    return made


def test_variables_of_another_process_are_removed_and_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in (str(os.getppid()), ""):
        monkeypatch.setenv("LISTEN_PID", pid)
        monkeypatch.setenv("LISTEN_FDS", "1")
        assert socket_activation.inherited(tmp_path / "s") is None
        assert not [name for name in os.environ if name.startswith("LISTEN_")]


def test_who_listens_is_seen_without_a_connection(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert not socket_activation.listens(path)
    with listener(path) as made:
        assert socket_activation.listens(path)
        made.setblocking(False)
        with pytest.raises(BlockingIOError):
            made.accept()
    assert path.exists() and not socket_activation.listens(path)


def test_clients_that_wait_are_turned_away(tmp_path: Path) -> None:
    with listener(tmp_path / "s") as made, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(tmp_path / "s"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
            gone.connect(str(tmp_path / "s"))
        socket_activation.turn_away(made)
        assert client.recv(1) == b""
        with pytest.raises(BlockingIOError):
            made.accept()


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"@wherry-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        socket_activation.say_ready()
        socket_activation.say_ready()
        assert systemd.recv(100) == b"READY=1"
        with pytest.raises(BlockingIOError):
            systemd.recv(100)
