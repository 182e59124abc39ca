"""The thread by which paths follow the ports: changes are kept when the kernel refuses it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import waiting
from wherry.fabric.cluster_paths import ClusterPaths
from wherry.model.network import network_of


def test_paths_follow_ports_again_after_a_thread_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next change begins another thread, which applies both."""
    applied: list[str] = []
    paths = ClusterPaths(None, {}, 1450, lambda number: network_of("10.77.0.0/16", number))  # type: ignore[arg-type]
    monkeypatch.setattr(paths, "_read", lambda network: None)
    monkeypatch.setattr(paths, "_follow", lambda network: None)
    start = threading.Thread.start

    def refused(_thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    network = network_of("10.77.0.0/16", 1)
    monkeypatch.setattr(threading.Thread, "start", refused)
    paths._later(network, 0, lambda: applied.append("first"))
    monkeypatch.setattr(threading.Thread, "start", start)
    paths._later(network, 1, lambda: applied.append("second"))
    waiting.until(lambda: applied == ["first", "second"], "both changes are applied")
