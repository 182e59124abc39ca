"""Baseline for `wherry move`: one VM moved by `virsh migrate --live` with default options.

Everything that can be prepared at the destination (TAP device in the cluster's bridge, files of the domain) is made
before the measurement. The destination's libvirtd must run, for instance because another node is there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.base.paths import Instance
from wherry.model.records import CONTROL_PORT, Node

_LIMIT = 300.0
_ANSWER_LIMIT = 60.0
"""Seconds after which a moved VM that does not answer counts as lost."""


class BaselineVirsh:
    """The move of one node by hand. `run` measures it, `close` removes everything that was made for it."""

    def __init__(self, instance: Instance, node: Node, network: int, host: str) -> None:
        self._node = node
        hosts = instance.run / "vm"
        self._source, self._destination = hosts / node.host, hosts / host
        self._netns, self._heads = f"{instance.prefix}-{host}", f"{instance.prefix}-*-{node.cluster}-head"
        self._bridge, self._tap = f"c{network}", f"p{network}.{node.index}"

    def prepare(self) -> None:
        """Makes everything at the destination that can be made before the VM is moved."""
        shutil.copytree(self._node_files(self._source), self._node_files(self._destination), dirs_exist_ok=True)
        self._ip("tuntap", "add", "dev", self._tap, "mode", "tap")
        self._ip("link", "set", "dev", self._tap, "master", self._bridge, "up")

    def run(self) -> tuple[float, float]:
        """Seconds until the command has ended and the VM answers, and the downtime that QEMU measured. The VM is probed
        after the command, at whose end libvirt has ended the source.
        """
        address = self._listen_address()
        began = time.monotonic()
        arguments = ["migrate", "--live", "--p2p", self._node.name, f"qemu+tcp://{address}/system", f"tcp://{address}"]
        _run("virsh", "-c", _uri(self._source), *arguments)
        self._await_answer()
        total = time.monotonic() - began
        output = _run(
            "virsh", "-c", _uri(self._destination), "domjobinfo", self._node.name, "--completed", "--rawstats"
        )
        match = re.search(r"^\s*downtime:\s*(\d+)", output, re.M)
        if match is None:
            raise Failed(Code.FAILED, "libvirt reports no downtime of the move by hand", output.strip()[-200:])
        return total, int(match[1]) / 1000

    def _await_answer(self) -> None:
        """Returns when the VM accepts a connection from the cluster's head."""
        deadline = time.monotonic() + _ANSWER_LIMIT
        head = next(Path("/run/netns").glob(self._heads)).name
        connect = ["bash", "-c", "exec 3<>/dev/tcp/$0/$1", self._node.address, str(CONTROL_PORT)]
        while True:
            with suppress(Failed):
                _run("timeout", "0.25", "ip", "netns", "exec", head, *connect)
                return
            if time.monotonic() > deadline:
                raise Failed(
                    Code.TIMED_OUT, "the machine moved by hand does not answer", f"waited {_ANSWER_LIMIT:.0f} s"
                )

    def close(self) -> None:
        """Destroys the VM at the destination and removes all that was made for it. Idempotent."""
        for arguments in (
            ["virsh", "-c", _uri(self._destination), "destroy", self._node.name],
            ["ip", "-n", self._netns, "link", "delete", "dev", self._tap],
        ):
            with suppress(Failed):  # it does not exist
                _run(*arguments)
        shutil.rmtree(self._node_files(self._destination), ignore_errors=True)

    def _node_files(self, host: Path) -> Path:
        return host / "run" / "wherry-nodes" / self._node.name

    def _listen_address(self) -> str:
        """Address that the destination's libvirtd listens on."""
        match = re.search(r'^listen_addr = "([^"]+)"', (self._destination / "etc" / "libvirtd.conf").read_text(), re.M)
        if match is None:
            raise Failed(Code.FAILED, "the destination's libvirtd listens nowhere", str(self._destination))
        return match[1]

    def _ip(self, *arguments: str) -> None:
        _run("ip", "-n", self._netns, *arguments)


def _uri(host: Path) -> str:
    return f"qemu+unix:///system?socket={host}/run/libvirt/libvirt-sock"


def _run(*arguments: str) -> str:
    result = subprocess.run(
        arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT, check=False
    )
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        why = lines[-1] if lines else f"exit code {result.returncode}"
        raise Failed(Code.FAILED, f"by hand: {arguments[0]} failed", why)
    return result.stdout
