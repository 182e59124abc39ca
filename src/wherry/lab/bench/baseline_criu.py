"""Baseline for `wherry move`: CRIU by hand, below runc: checkpoint, copy and restore, all on tmpfs.

With pre-dump the memory is written once before, while the container runs, and the checkpoint has the changes since
then. The commands run without pauses, and everything at the destination is there before.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from typing import Any

from wherry.base.errors import Failed
from wherry.base.paths import Instance
from wherry.lab.bench.baseline_container import LIMIT, ContainerByHand, Writing, execute, working_criu

_ID = "by-hand"
_OPTIONS = ("--tcp-established", "--file-locks")


class BaselineCriu(ContainerByHand):
    """A container of runc."""

    def __init__(self, instance: Instance, writing: Writing, pre_dump: bool = False) -> None:
        super().__init__(instance, writing)
        self._pre_dump = pre_dump
        self._log = self.directory / "runc.log"
        runtime = str(self.directory / "runtime")
        self._runc = ("runc", "--root", runtime, "--log", str(self._log), "--criu", working_criu())

    def start(self) -> None:
        bundle = self.directory / "bundle"
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(self._config()))
        self._execute("run", "--detach", "--bundle", str(bundle), _ID)

    def move(self) -> int:
        images, copy = self.directory / "images", self.directory / "copy"
        parent: list[str] = []
        if self._pre_dump:
            self._execute("checkpoint", "--pre-dump", "--image-path", str(images / "before"), *_OPTIONS, _ID)
            parent = ["--parent-path", "../before"]
        self._execute("checkpoint", "--image-path", str(images / "last"), *parent, *_OPTIONS, _ID)
        execute(["cp", "-a", str(images), str(copy)])
        bundle = str(self.directory / "bundle")
        self._execute("restore", "--image-path", str(copy / "last"), *_OPTIONS, "--detach", "--bundle", bundle, _ID)
        return sum(path.lstat().st_size for path in images.rglob("*") if path.is_file())

    def remove(self) -> None:
        with suppress(Failed):  # there is none
            self._execute("delete", "--force", _ID)

    def _execute(self, *words: str) -> None:
        execute([*self._runc, *words], log=self._log, images=self.directory)

    def _config(self) -> dict[str, Any]:
        namespaces: list[dict[str, str]] = [{"type": name} for name in ("pid", "ipc", "uts", "mount")]
        shared_memory = ["nosuid", "noexec", "nodev", "mode=1777"]
        return {
            "ociVersion": "1.0.2",
            "hostname": "by-hand",
            "process": {"user": {"uid": 0, "gid": 0}, "args": self.argv, "env": ["PATH=/"], "cwd": "/"},
            "root": {"path": str(self.directory / "root"), "readonly": True},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
                {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": shared_memory},
            ],
            "linux": {
                "cgroupsPath": f"/{self.cgroup}",
                "namespaces": [*namespaces, {"type": "network", "path": f"/run/netns/{self.netns}"}],
            },
        }


def pre_dump_obstacle() -> str:
    """Why CRIU cannot pre-dump here; empty when it can."""
    words = [working_criu(), "check", "--feature", "mem_dirty_track"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False)
    return "" if done.returncode == 0 else "CRIU's pre-dump needs soft-dirty tracking, which this kernel lacks"
