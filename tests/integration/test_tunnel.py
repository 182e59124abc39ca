"""Half-made tunnels are completed by the next repair; a gateway's PID file is not confused with a reused PID."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import waiting
from wherry.base.errors import Code, Failed
from wherry.base.paths import native_program
from wherry.fabric import gateway_certificates, vpn_gateway, vpn_tunnel, wireguard
from wherry.fabric.gateway_certificates import ELLIPTIC
from wherry.fabric.vpn_gateway import Gateway
from wherry.fabric.vpn_tunnel import Tunnel

SLEEP = [sys.executable, "-c", "import time; time.sleep(100)"]


@pytest.fixture(autouse=True)
def _no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vpn_gateway, "inside", _run_unwrapped)
    monkeypatch.setattr(vpn_tunnel.netns_links, "inside", lambda netns, action: None)


def _run_unwrapped(_netns: str, *words: str, number: Path) -> list[str]:
    return [str(native_program("wherry-ns")), "--number", str(number), "--", *words]


class HalfMadeTunnel(Tunnel):
    """A tunnel that fails a given number of times after starting its gateways."""

    fails = 1

    def _gateway(self, side: int, netns: str) -> Gateway:
        return Gateway(self._directory, side, netns)

    def _make(self) -> None:
        for one in self._gateways:
            if one.pid() is None:
                one.start(SLEEP)
        if self.fails:
            self.fails -= 1
            raise Failed(Code.FAILED, "no luck")

    def _connected(self, side: int) -> bool:
        return True


def test_half_made_tunnel_is_not_reported_as_complete(tmp_path: Path) -> None:
    tunnel = HalfMadeTunnel(tmp_path / "keys", "a--b", [("one", "s1"), ("other", "s0")], 0, "lan")
    with pytest.raises(Failed):
        tunnel.up()
    assert not tunnel.alive()
    tunnel.up()
    assert tunnel.alive() and os.stat(tmp_path / "keys").st_mode & 0o077 == 0
    before = [int((tmp_path / "keys" / f"{side}.pid").read_text().split()[0]) for side in (0, 1)]
    tunnel.fails = 1
    with pytest.raises(Failed):
        tunnel.up()
    assert tunnel.alive(), "the gateways that ran before still run"
    later = HalfMadeTunnel(tmp_path / "keys", "a--b", [("one", "s1"), ("other", "s0")], 0, "lan")
    assert [one.pid() for one in later._gateways] == before, "a new daemon finds them"
    tunnel.down()
    assert not later.alive() and not (tmp_path / "keys").exists()


def test_process_with_a_reused_pid_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen(SLEEP)
    one = Gateway(tmp_path, 0, "")
    one.start(SLEEP)
    assert one.pid() is not None
    started = (tmp_path / "0.pid").read_text().split()[1]
    one.end()
    (tmp_path / "0.pid").write_text(f"{stranger.pid} {int(started) + 1000}")
    assert one.pid() is None
    (tmp_path / "0.pid").write_text(f"2 {started}")  # kthreadd, which has no command line
    assert one.pid() is None
    one.end()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_gateway_is_found_by_the_next_daemon(tmp_path: Path) -> None:
    """A gateway writes its own PID file, so its status can be read at any time; its exit is not waited for."""
    one = Gateway(tmp_path, 0, "")
    child = subprocess.Popen(
        _run_unwrapped("", *SLEEP, number=tmp_path / "0.pid")
    )  # as if its starter had been killed here
    while not (tmp_path / "0.pid").exists():
        assert child.poll() is None
    assert one.pid() == child.pid
    one.end()
    assert child.wait() == -signal.SIGKILL and one.pid() is None
    one.start(["/no/such/program"])
    waiting.until(lambda: one.pid() is None, "the end of the process")  # it exists for a moment after its message
    assert "cannot run /no/such/program" in one.output()


def test_a_gateway_that_hangs_before_it_begins_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "0.pid.new")  # wherry-ns waits for a reader
    monkeypatch.setattr(vpn_gateway, "START_TIMEOUT", 0.3)
    one, before = Gateway(tmp_path, 0, ""), _children()
    with pytest.raises(Failed, match="was not started") as told:
        one.start(SLEEP)
    assert told.value.code == Code.TIMED_OUT
    assert _children() <= before


def _children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_status_of_a_gateway_that_exits_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tunnel, sleep = Gateway(tmp_path, 0, "one"), time.sleep

    def look(_seconds: float) -> None:  # a concurrent status request of the link
        sleep(0.1)
        tunnel.pid()

    monkeypatch.setattr(vpn_gateway, "inside", lambda netns, *words, number: ["sleep", "0.05"])
    monkeypatch.setattr(vpn_gateway.time, "sleep", look)
    tunnel.start([])
    assert tunnel.pid() is None


def test_half_made_certificate_is_recreated(tmp_path: Path) -> None:
    """The daemon was killed while openssl wrote the file; existing files count as complete."""
    keys = tmp_path / "keys"
    keys.mkdir()
    for name in ("0.key.new", "0.crt.new"):
        (keys / name).write_text("-----BEGIN")
    _, certificate = gateway_certificates.made(keys, 0, "a--b", ELLIPTIC)
    fingerprint = gateway_certificates.fingerprint(certificate)
    assert len(fingerprint) == 95
    assert gateway_certificates.fingerprint(gateway_certificates.made(keys, 0, "a--b", ELLIPTIC)[1]) == fingerprint
    assert sorted(path.name for path in keys.iterdir()) == ["0.crt", "0.key"]
    assert (keys / "0.key").stat().st_mode & 0o077 == 0


def test_wireguard_gateway_is_up_once_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wg` removes a control socket that is bound but not listening yet, so it must not be used before."""
    monkeypatch.setattr(wireguard, "_SOCKETS", tmp_path)
    path = tmp_path / "w.sock"
    assert not wireguard.answers("w")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as vpn_gateway:
        vpn_gateway.bind(str(path))
        assert not wireguard.answers("w") and path.exists()
        vpn_gateway.listen()
        assert wireguard.answers("w")
