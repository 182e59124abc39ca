"""Baseline for `wherry move`: podman by hand: checkpoint with export, restore with import, as between two machines.

Source and destination each have a storage of their own, which holds the same image, made from a file: nothing is
pulled. Its configuration is its own, too.
"""

from __future__ import annotations

import shutil
import tarfile
from contextlib import suppress
from pathlib import Path

from wherry.base.errors import Failed
from wherry.base.paths import Instance
from wherry.lab.bench.baseline_container import ContainerByHand, Writing, execute, working_criu

_IMAGE, _NAME = "localhost/wherry-writer:latest", "by-hand"
_OPTIONS = ("--tcp-established", "--file-locks")
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
"""podman's own are higher than root may set on some machines."""
_CACHE, _NETWORKS = Path("/var/lib/containers/cache"), Path("/run/containers/networks")
_ELSEWHERE = (_CACHE / "blob-info-cache-v1.boltdb", _CACHE, _CACHE.parent, _NETWORKS, _NETWORKS.parent)
"""Files and directories that podman makes wherever its storage is."""
_CONFIGURATION = """\
[containers]
log_driver = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
[network]
network_config_dir = "{directory}/networks"
"""


class BaselinePodman(ContainerByHand):
    """A container of podman, below runc."""

    def __init__(self, instance: Instance, writing: Writing) -> None:
        super().__init__(instance, writing)
        self._criu = working_criu()
        self._elsewhere = [path for path in _ELSEWHERE if not path.exists()]
        configuration, programs = self.directory / "containers.conf", self.directory / "bin"
        self._environment = {"CONTAINERS_CONF": str(configuration), "TMPDIR": str(self.directory / "tmp")}
        self._environment["PATH"] = f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    def start(self) -> None:
        (self.directory / "containers.conf").write_text(_CONFIGURATION.format(directory=self.directory))
        for name in ("bin", "tmp"):
            (self.directory / name).mkdir()
        (self.directory / "bin" / "criu").symlink_to(self._criu)  # podman asks it for its version
        archive = self.directory / "image.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(self.directory / "root", ".")
        for host in ("source", "destination"):
            self._podman(host, "import", str(archive), _IMAGE)
        here = ["--pull", "never", *_LIMITS]
        network = ["--network", f"ns:/run/netns/{self.netns}", "--cgroup-parent", f"/{self.cgroup}"]
        self._podman("source", "run", "--detach", "--name", _NAME, *here, *network, _IMAGE, *self.argv)

    def move(self) -> int:
        export = self.directory / "export.tar"
        compress = ["--compress", "none"]  # quicker than its default, zstd
        self._podman("source", "container", "checkpoint", "--export", str(export), *compress, *_OPTIONS, _NAME)
        self._podman("destination", "container", "restore", "--import", str(export), *_OPTIONS)
        return export.stat().st_size

    def remove(self) -> None:
        if not (self.directory / "containers.conf").exists():
            return
        for host in ("source", "destination"):
            with suppress(Failed):
                self._podman(host, "rm", "--force", "--all", "--time", "0")
        for path in self._elsewhere:
            with suppress(OSError):  # others use it meanwhile
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)

    def _podman(self, host: str, *words: str) -> None:
        storage, criu = self.directory / host, f"criu={self._criu}"
        places = {"--root": "storage", "--runroot": "run", "--tmpdir": "tmp"}
        options = [word for option, name in places.items() for word in (option, str(storage / name))]
        flags = [f"root={storage / 'runtime'}", criu]
        runtime = ["--runtime", "runc", *(word for flag in flags for word in ("--runtime-flag", flag))]
        command = ["podman", *options, "--storage-driver", "vfs", *runtime, *words]
        execute(command, self._environment, images=self.directory)


def podman_obstacle() -> str:
    """Why podman is left out; empty when it is there."""
    return "" if shutil.which("podman") else "podman is not installed: make setup-podman"
