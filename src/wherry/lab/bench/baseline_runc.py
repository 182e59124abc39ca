"""Baseline for `wherry move`: one node moved by `runc checkpoint`, copy and `runc restore`.

The destination's network namespace, mounts and configuration are prepared before the checkpoint, all files are on
tmpfs, and the commands run without pauses. The node must be on the host where it was started, because runc has its
state only there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import Any

from wherry.base.errors import Code, Failed
from wherry.base.paths import Instance
from wherry.model.records import Node

_LIMIT = 300.0


class BaselineRunc:
    """The move of one node by hand. `run` measures it, `close` removes everything that was made for it."""

    def __init__(self, instance: Instance, node: Node) -> None:
        self._node = node
        self._source = instance.run / "nodes" / f"{node.name}@{node.host}"
        self._destination = instance.run / "by-hand"
        self._netns = f"{instance.prefix}-by-hand"
        self._cgroup = f"{instance.prefix}/by-hand"
        document = json.loads(_output(sys.executable, "-P", "-m", "wherry.node.container.criu.probe"))
        self._runc = ["runc", "--root", str(instance.run / "runtime"), "--criu", document["path"]]
        self._from, self._to = f"{node.name}.{node.host}", "by-hand"

    def prepare(self) -> None:
        """Makes everything at the destination that can be made before the checkpoint."""
        self._destination.mkdir(mode=0o700)
        _run("mount", "-t", "tmpfs", "-o", "mode=0700", "wherry", str(self._destination))
        for name in ("root", "private", "bundle", "images", "copy"):
            (self._destination / name).mkdir()
        _run("mount", "--bind", "-o", "ro", "/", str(self._destination / "root"))
        config = json.loads((self._source / "bundle" / "config.json").read_text())
        (self._destination / "bundle" / "config.json").write_text(json.dumps(self._destination_config(config)))
        _run("ip", "netns", "add", self._netns)
        _run("ip", "-n", self._netns, "link", "add", "eth0", "type", "veth", "peer", "name", "other")
        _run("ip", "-n", self._netns, "link", "set", "dev", "eth0", "address", self._node.mac)
        _run("ip", "-n", self._netns, "address", "add", f"{self._node.address}/24", "dev", "eth0")
        for interface in ("lo", "other", "eth0"):
            _run("ip", "-n", self._netns, "link", "set", "dev", interface, "up")

    def run(self) -> float:
        """Seconds from the start of the first to the end of the last command, which is the node's downtime."""
        images, copy = self._destination / "images", self._destination / "copy"
        options = ["--tcp-established", "--file-locks"]
        began = time.monotonic()
        _run(*self._runc, "checkpoint", "--image-path", str(images), *options, self._from)
        _run("cp", "-a", f"{images}/.", str(copy))
        _run("cp", "-a", f"{self._source / 'private'}/.", str(self._destination / "private"))
        bundle = ["--detach", "--bundle", str(self._destination / "bundle")]
        _run(*self._runc, "restore", "--image-path", str(copy), *options, *bundle, self._to)
        elapsed = time.monotonic() - began
        state = json.loads(_output(*self._runc, "state", self._to))
        if state.get("status") != "running":
            raise Failed(Code.FAILED, "the node restored by hand does not run", str(state.get("status")))
        return elapsed

    def close(self) -> None:
        """Removes the restored node and everything made for it. Idempotent."""
        for command in (
            [*self._runc, "delete", "--force", self._to],
            ["ip", "netns", "delete", self._netns],
            ["umount", "--lazy", str(self._destination / "root")],
            ["umount", "--lazy", str(self._destination)],
        ):
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT, check=False)
        shutil.rmtree(self._destination, ignore_errors=True)

    def _destination_config(self, config: dict[str, Any]) -> dict[str, Any]:
        config["root"]["path"] = str(self._destination / "root")
        config["linux"]["cgroupsPath"] = f"/{self._cgroup}"
        for mount in config["mounts"]:
            mount["source"] = mount["source"].replace(f"{self._source}/private", f"{self._destination}/private")
        for namespace in config["linux"]["namespaces"]:
            if namespace["type"] == "network":
                namespace["path"] = f"/run/netns/{self._netns}"
        return config


def _run(*command: str) -> None:
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        why = lines[-1] if lines else f"exit {result.returncode}"
        raise Failed(Code.FAILED, f"by hand: {' '.join(command[:1])} {command[-1]} failed", why)


def _output(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    if result.returncode:
        raise Failed(Code.FAILED, f"by hand: {command[0]} failed", (result.stderr or result.stdout).strip()[-300:])
    return result.stdout
