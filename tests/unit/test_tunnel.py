"""A tunnel that could only be made by half is made anew by whoever looks next; a gateway is told from a stranger."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wherry.base.errors import Code, Failed
from wherry.fabric import gateway, tunnel
from wherry.fabric.gateway import Gateway
from wherry.fabric.tunnel import Tunnel

SLEEP = [sys.executable, "-c", "import time; time.sleep(100)"]


@pytest.fixture(autouse=True)
def _no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "inside", lambda netns, *words: list(words))
    monkeypatch.setattr(tunnel.links, "inside", lambda netns, act: None)


class Half(Tunnel):
    """Starts its gateways and fails then, as often as told."""

    fails = 1

    def _gateway(self, side: int, netns: str) -> Gateway:
        return Gateway(self._directory, side, netns, f"mark-{side}")

    def _make(self) -> None:
        for side, one in enumerate(self._gateways):
            if one.pid() is None:
                one.start([*SLEEP, f"mark-{side}"])
        if self.fails:
            self.fails -= 1
            raise Failed(Code.FAILED, "no luck")

    def _stands(self, side: int) -> bool:
        return True


def test_what_is_made_by_half_does_not_pass_for_whole(tmp_path: Path) -> None:
    made = Half(tmp_path / "keys", "a--b", [("one", "s1"), ("other", "s0")], 0, "lan")
    with pytest.raises(Failed):
        made.up()
    assert not made.alive()
    made.up()
    assert made.alive() and os.stat(tmp_path / "keys").st_mode & 0o077 == 0
    before = [int((tmp_path / "keys" / f"{side}.pid").read_text()) for side in (0, 1)]
    made.fails = 1
    with pytest.raises(Failed):
        made.up()
    assert made.alive(), "who ran before is not ended"
    later = Half(tmp_path / "keys", "a--b", [("one", "s1"), ("other", "s0")], 0, "lan")
    assert [one.pid() for one in later._gateways] == before, "a new daemon finds them"
    made.down()
    assert not later.alive() and not (tmp_path / "keys").exists()


def test_another_process_of_that_number_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen(SLEEP)
    (tmp_path / "0.pid").write_text(str(stranger.pid))
    one = Gateway(tmp_path, 0, "", "mark-0")
    while not Path(f"/proc/{stranger.pid}/cmdline").read_bytes():
        continue
    assert one.pid() is None
    one.end()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
