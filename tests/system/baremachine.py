"""A machine that has nothing but Debian's base: files of scripts/bare-root below an overlay, with processes, mounts and
name of its own. The kernel, its cgroups and its network are this machine's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from waiting import until

TOP = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("PACKAGES_CACHE", "/var/tmp/wherry-packages"))
SECONDS = 1800
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_ENTERED = ("--mount", "--pid", "--uts", "--ipc", "--root", "--wd")
_INIT = """\
set -e
root=$1; cd "$root"; mount --bind . .; cd "$root"
mkdir -p old proc sys dev run; mount -t proc proc proc; mount --rbind /sys sys
mount -t tmpfs -o mode=755 dev dev
for name in null zero full random urandom tty fuse kvm; do [ ! -e /dev/$name ] || cp -a /dev/$name dev/; done
mkdir -p dev/net dev/shm dev/pts; mknod dev/net/tun c 10 200; chmod 666 dev/net/tun
mount -t tmpfs -o mode=1777 shm dev/shm; mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd; ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
mount -t tmpfs -o mode=755 run run; mount -t tmpfs -o mode=1777 tmp tmp
pivot_root . old; umount -l /old; hostname bare; touch /run/is-up
exec env --ignore-signal=CHLD sleep infinity
"""
"""The last command has the kernel reap the processes that nobody waits for."""


class BareMachine:
    """Commands run as root, and with the instance's name of the test."""

    def __init__(self, init: int, root: Path, instance: str) -> None:
        self._init, self.root, self._instance = init, root, instance

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command, whatever its exit code."""
        environment = {
            "HOME": "/root", "LANG": "C.UTF-8", "PATH": _PATH, "TERM": "dumb", "DEBIAN_FRONTEND": "noninteractive",
            "WHERRY_INSTANCE": self._instance,
        }  # fmt: skip
        environment |= {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "http", "HTTP"))}
        return subprocess.run(
            ["nsenter", f"--target={self._init}", *_ENTERED, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def run(self, *words: str) -> str:
        """The output of a command that must succeed."""
        done = self(*words)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def install(self, *packages: str) -> None:
        """By apt-get; a package is a name, or a file below /."""
        self.run("apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages)

    def put(self, file: Path) -> str:
        """Copies a file there; returns its path."""
        shutil.copy(file, self.root / "srv" / file.name)
        return f"/srv/{file.name}"

    def processes(self) -> list[str]:
        """The names of all processes but the first and the programs that list them."""
        listed = self.run("sh", "-c", "cat /proc/[0-9]*/comm").split("\n")
        return sorted({name for name in listed if name} - {"sleep", "sh", "cat"})


@contextmanager
def bare_machine(suite: str, instance: str) -> Iterator[BareMachine]:
    """A new one, which is removed with all its processes."""
    if not (CACHE / f"{suite}.done").exists():
        pytest.skip(f"there are no files of {suite} in {CACHE}: make test-packages")
    directory = Path(tempfile.mkdtemp(prefix="wherry-bare-", dir="/var/tmp"))
    for name in ("upper", "work", "root"):
        (directory / name).mkdir()
    root = directory / "root"
    options = f"lowerdir={CACHE / suite},upperdir={directory}/upper,workdir={directory}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(root)], check=True)
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--propagation=private"]
    for path in ("/etc/resolv.conf", "/etc/hosts", _CERTIFICATES):
        shutil.copy(path, root / str(path).lstrip("/"))
    init = subprocess.Popen([*words, "bash", "-c", _INIT, "init", str(root)])
    try:
        children = Path(f"/proc/{init.pid}/task/{init.pid}/children")
        child = until(lambda: children.read_text().split(), "its first process")
        machine = BareMachine(int(child[0]), root, instance)
        until(lambda: init.poll() is not None or machine("test", "-e", "/run/is-up").returncode == 0, "the machine")
        machine.run("apt-get", "-qq", "update")
        yield machine
    finally:
        init.kill()
        init.wait()
        subprocess.run(["umount", "--lazy", str(root)], check=True)
        shutil.rmtree(directory)
