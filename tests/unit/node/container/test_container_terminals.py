"""States of terminals that a move would lose."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
from collections.abc import Iterator

import pytest

from wherry.base.errors import Refused
from wherry.node.container import movable, terminals
from wherry.node.container.host import Uses
from wherry.node.container.shared_files import lacks

TIOCSLCKTRMIOS = 0x5457


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    master, slave = os.openpty()
    yield master, slave
    os.close(slave)
    os.close(master)


def test_a_change_of_state_is_unread_until_it_is_read(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    termios.tcflush(slave, termios.TCIFLUSH)
    assert terminals.obstacle(master) == "" and not terminals.is_in_packet_mode(master)
    fcntl.ioctl(master, termios.TIOCPKT, struct.pack("i", 1))
    assert terminals.obstacle(master) == "" and terminals.is_in_packet_mode(master)
    termios.tcflush(slave, termios.TCIFLUSH)
    assert "TIOCPKT" in terminals.obstacle(master)
    assert os.read(master, 10) == bytes([termios.TIOCPKT_FLUSHREAD])
    assert terminals.obstacle(master) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root locks settings")
def test_locked_settings_are_seen(terminal: tuple[int, int]) -> None:
    fcntl.ioctl(terminal[1], TIOCSLCKTRMIOS, b"\1" + bytes(terminals.SETTINGS - 1))
    assert "locked" in terminals.obstacle(terminal[0])


def test_a_kernel_that_takes_no_input_refuses_nodes_with_terminals(
    monkeypatch: pytest.MonkeyPatch, terminal: tuple[int, int]
) -> None:
    if os.geteuid() == 0:
        assert terminals.input_obstacle() == ""
    really = fcntl.ioctl

    def ioctl(file: int, request: int, *rest: bytes) -> object:
        if request == termios.TIOCSTI:
            raise OSError(errno.EIO, "Input/output error")
        return really(file, request, *rest)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with pytest.raises(Refused, match="has a terminal, and its kernel lets nobody .*legacy_tiocsti=1"):
        movable.require_movable([os.getpid()], ())
    assert terminals.masters(os.getpid()) == [terminal[0]]
    assert "legacy_tiocsti" in lacks(Uses(terminals=True)) and lacks(Uses()) == ""
