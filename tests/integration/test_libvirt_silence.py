"""How a libvirtd that hangs, or that died, is distinguished from a busy one: by its connections (design 0032)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import waiting
from names import own_name
from wherry.base.errors import WherryError
from wherry.base.paths import Instance
from wherry.node.vm import libvirt_client
from wherry.node.vm.emulated import host_libvirtd

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("libvirtd"), reason="only root runs libvirtd, which make setup-vm installs"
)
ALONE = """
for file in passwd group; do mount --bind "$1/$file" "/etc/$file"; done
for directory in /run /var/lib /var/cache; do mount -t tmpfs none "$directory"; done
exec libvirtd --config "$1/libvirtd.conf" --pid-file /run/libvirtd.pid
"""


class Libvirtd:
    """A libvirtd without the state of this machine's drivers."""

    def __init__(self, top: Path) -> None:
        (top / "libvirtd.conf").write_text(f'unix_sock_dir = "{top}"\nauth_unix_rw = "none"\n')
        for file, entry in host_libvirtd._ENTRIES.items():
            (top / file).write_text(f"{Path('/etc', file).read_text()}{entry}\n")
        words = ["unshare", "--mount", "--net", "--propagation", "private", "/bin/sh", "-ec", ALONE, "libvirtd"]
        self.process = subprocess.Popen(
            [*words, str(top)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.uri = f"qemu+unix:///system?socket={top}/libvirt-sock"
        waiting.until((top / "libvirt-sock").exists, "the socket")


@pytest.fixture
def libvirtd(tmp_path: Path) -> Iterator[Libvirtd]:
    found = Libvirtd(tmp_path)
    yield found
    found.process.kill()
    found.process.wait()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_libvirtd_that_hangs_or_died_is_noticed_in_a_call(
    libvirtd: Libvirtd, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed one long before keep-alives, which are as in the product, show it; a hanging one by keep-alives."""
    if number == signal.SIGSTOP:
        monkeypatch.setattr(libvirt_client, "KEEPALIVE_SECONDS", 1)
        monkeypatch.setattr(libvirt_client, "KEEPALIVES", 2)
    connection = libvirt_client.connect(libvirtd.uri)
    assert connection.getHostname() and libvirt_client.is_alive(connection)
    ended = list[WherryError]()

    def call() -> None:
        while not ended:  # the first ones may be answered
            try:
                with libvirt_client.translated_errors("no answer"):
                    connection.getHostname()
            except WherryError as error:
                ended.append(error)

    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    libvirtd.process.send_signal(number)
    waiting.until(lambda: ended, "the end of the call")
    assert not libvirt_client.is_alive(connection)


def test_libvirtds_of_hosts_and_this_daemon_wait_equally_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all three directions: of this daemon to one, of one to this daemon, of one to another in a migration."""
    monkeypatch.setattr(host_libvirtd, "_MOUNTS", ())
    monkeypatch.setattr(host_libvirtd, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(host_libvirtd, "grant_read", lambda _: None)
    fabric = SimpleNamespace(host_address=lambda _host: "10.0.0.1")
    daemon = host_libvirtd.HostDaemon(Instance(own_name("tsil")), cast(Any, fabric), "a1")
    daemon.directory = tmp_path / "a1"
    (daemon.directory / "etc").mkdir(parents=True)
    daemon._configure()
    for file in ("libvirtd.conf", "qemu.conf"):
        found = dict(re.findall(r"(?m)^(keepalive_\w+) = (.*)$", (daemon.directory / "etc" / file).read_text()))
        seconds, count = json.loads(found["keepalive_interval"]), json.loads(found["keepalive_count"])
        assert (seconds, count) == (libvirt_client.KEEPALIVE_SECONDS, libvirt_client.KEEPALIVES)
        assert 60 <= seconds * count <= 120
