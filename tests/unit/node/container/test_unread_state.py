"""Unread state is found again in the freeze, also at sockets that are new by then."""

from __future__ import annotations

import os
import socket

import pytest

from wherry.node.container.unread_state import UnreadState


def test_messages_at_sockets_that_came_after_the_list_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = list[int]()
    really = UnreadState.learn

    def learn(self: UnreadState, pids: list[int]) -> None:
        listed.append(len(pids))
        really(self, pids)

    monkeypatch.setattr(UnreadState, "learn", learn)
    me, state = [os.getpid()], UnreadState([])
    state.learn(me)
    here, there = socket.socketpair()
    semaphore = os.eventfd(1, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
    with here, there:
        unread = frozenset({os.fstat(there.fileno()).st_ino, 1})
        here.send(b"x")
        assert state.obstacle(me, unread) == "" and len(listed) == 2
        socket.send_fds(here, [b"y"], [semaphore])
        assert "semaphore mode in a message" in state.obstacle(me, unread)
        assert len(listed) == 2, "no process holds the other one, for which all are not listed in each freeze"
    os.close(semaphore)
