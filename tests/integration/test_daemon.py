"""Shutdown of `wherryd`: its instance lock is held until no thread can write any more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import waiting
from names import own_name
from wherry.base.paths import Instance

PLACE = Instance(own_name("tdae"))
DAEMON = """
import fcntl, os, sys, threading, time
from wherry.service import daemon

def begin(*given):
    place = given[0]

    def write():  # as a move does that libvirt is at
        while time.monotonic() < end:
            with open(place.run / "lock") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.write(1, b"wrote without the lock")
                    return
                except BlockingIOError:
                    time.sleep(0.001)
    end = time.monotonic() + 60
    threading.Thread(target=write).start()

daemon._run = begin
sys.argv = ["wherryd"]
daemon.main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the daemon is root's")
def test_daemon_stops_at_once_and_holds_its_lock_until_then(tmp_path: Path) -> None:
    environment = os.environ | {"WHERRY_INSTANCE": PLACE.name, "WHERRY_STATE": str(tmp_path)}
    share = Path("/proc/self/autogroup")
    before = share.read_text() if share.exists() else ""
    try:
        done = subprocess.run(
            [sys.executable, "-c", DAEMON],
            env=environment,
            capture_output=True,
            text=True,
            timeout=waiting.bound(),
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert not before or share.read_text() == before, "this session is not the daemon's own"
    finally:
        shutil.rmtree(PLACE.run, ignore_errors=True)
