"""The wheel, the Debian package and the container image, each installed on a bare Debian, used, and removed."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from baremachine import CACHE, SECONDS, TOP, BareMachine, bare_machine

from names import own_name

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines are made by root"),
    pytest.mark.skipif("WHERRY_LONG_TESTS" not in os.environ, reason="it installs machines: make test-packages"),
    pytest.mark.timeout(3600),
]
SUITE = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
"""Of this machine, for which the Debian package is made."""


@pytest.fixture
def machine() -> Iterator[BareMachine]:
    with bare_machine(SUITE, own_name("pk")) as created:
        yield created


def made(pattern: str) -> Path:
    """The newest file that `make wheel` or `make deb` made."""
    found = sorted((TOP / "dist").glob(pattern), key=lambda path: path.stat().st_mtime)
    if not found:
        pytest.skip(f"there is no dist/{pattern}: make test-packages")
    return found[-1]


class Container:
    """The image in a container of podman, whose storage is in a directory. Commands run inside."""

    def __init__(self, directory: Path) -> None:
        places = ("--root", str(directory / "root"), "--runroot", str(directory / "run"))
        self._podman = ("podman", *places, "--cgroup-manager", "cgroupfs", "--runtime", "runc")

    def podman(self, *words: str, stdin: int = subprocess.DEVNULL) -> str:
        done = subprocess.run(
            [*self._podman, *words], stdin=stdin, capture_output=True, text=True, cwd=TOP, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def run(self, *words: str) -> str:
        return self.podman("exec", "wherry", *words)

    def processes(self) -> list[str]:
        listed = self.run("sh", "-c", "cat /proc/[0-9]*/comm").split("\n")
        return sorted({name for name in listed if name} - {"bash", "sleep", "sh", "cat"})


def use(machine: BareMachine | Container, wherry: str, site: str) -> None:
    """Makes a cluster, moves a node while a job runs on it, and removes everything."""
    findings = json.loads(machine.run(wherry, "doctor", "-o", "json"))["findings"]
    needed = {"programs", "runtime", "criu", "cgroups", "netns", "bridge", "veth"}
    health = {one["name"]: one for one in findings if one["name"] in needed}
    assert {name: one["text"] for name, one in health.items() if one["health"] == "missing"} == {}
    machine.run(wherry, "up", f"{site}/examples/hello.yaml")
    ring = f"{site}/bin/wherry-ring-mpich"
    job = json.loads(
        machine.run(wherry, "run", "hello", "-n", "4", "--detach", "-o", "json", "--", ring, "--seconds", "20")
    )
    moved = json.loads(machine.run(wherry, "move", "hello-2", "--to", "a1", "-o", "json"))
    assert (moved["destination"], moved["phase"]) == ("a1", "done"), moved
    machine.run(wherry, "job", "wait", job["id"])
    machine.run(wherry, "down", "--all", "--yes")
    assert machine.processes() == []


@pytest.fixture
def container() -> Iterator[Container]:
    """The image, built on the files of the bare machines, as registries are not asked."""
    if missing := [name for name in ("podman", "runc", "conmon") if not shutil.which(name)]:
        pytest.skip(f"there is no {', no '.join(missing)}: make test-packages")
    if not (CACHE / f"{SUITE}.done").exists():
        pytest.skip(f"there are no files of {SUITE} in {CACHE}: make test-packages")
    made("wherry_*.deb")
    instance, directory = own_name("pi"), Path(tempfile.mkdtemp(prefix="wherry-image-", dir="/var/tmp"))
    created = Container(directory)
    try:
        with subprocess.Popen(["tar", "-C", str(CACHE / SUITE), "-c", "."], stdout=subprocess.PIPE) as files:
            assert files.stdout
            created.podman("import", "-", "localhost/bare", stdin=files.stdout.fileno())
        arguments = ("--build-arg", "BASE=localhost/bare", "--build-arg", "PACKAGES=mpich")
        isolated = ("--network", "host", "--isolation", "chroot")
        created.podman("build", *isolated, *arguments, "-f", "packaging/Dockerfile", "-t", "localhost/wherry", ".")
        host = ("--privileged", "--network", "host", "--cgroupns", "host", "--tmpfs", "/run:exec,mode=755")
        limits = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")  # root may set no higher ones here
        named = ("--name", "wherry", "--env", f"WHERRY_INSTANCE={instance}", "--volume", "/var/lib/wherry")
        created.podman("run", "--detach", *named, *host, *limits, "localhost/wherry")
        yield created
        created.podman("stop", "--time", "60", "wherry")
        assert not list(Path("/sys/fs/cgroup").glob(f"**/wherry-{instance}"))
    finally:
        created.podman("rm", "--force", "--all", "--time", "0")
        created.podman("rmi", "--force", "--all")
        shutil.rmtree(directory)


def test_wheel_in_an_empty_environment(machine: BareMachine) -> None:
    machine.install("python3-venv", "mpich")
    machine.run("python3", "-m", "venv", "/opt/wherry")
    machine.run("/opt/wherry/bin/pip", "install", "-q", machine.put(made("wherry-*.whl")))
    wherry = "/opt/wherry/bin/wherry"
    lacking = json.loads(machine.run(wherry, "doctor", "-o", "json"))["findings"]
    assert "sudo wherry doctor --install" in {one["remedy"] for one in lacking if one["name"] == "criu"}
    installed = json.loads(machine.run(wherry, "doctor", "--install", "-o", "json"))["installed"]
    assert "runc" in installed["packages"] and installed["criu"]
    (site,) = machine.run("sh", "-c", "echo /opt/wherry/lib/python3*/site-packages/wherry").split()
    use(machine, wherry, site)
    machine.run("/opt/wherry/bin/pip", "uninstall", "-q", "-y", "wherry")
    assert machine.run("find", str(Path(site).parent), "-name", "wherry*") == ""


def test_debian_package(machine: BareMachine) -> None:
    machine.install(machine.put(made("wherry_*.deb")), "mpich", "systemd")
    assert machine.run("wherry", "version").strip() in machine.run("dpkg-query", "-W", "-f", "${Version}", "wherry")
    (site,) = machine.run("sh", "-c", "echo /usr/lib/wherry/lib/python3*/site-packages/wherry").split()
    assert machine.run("systemd-analyze", "verify", "/usr/lib/systemd/system/wherryd.socket") == ""
    assert machine("test", "-L", "/etc/systemd/system/sockets.target.wants/wherryd.socket").returncode == 0
    for file in ("man/man1/wherry.1.gz", "bash-completion/completions/wherry", "doc/wherry/examples/hello.yaml"):
        machine.run("test", "-s", f"/usr/share/{file}")
    machine.install("python3-libvirt")
    machine.run("/usr/lib/wherry/bin/python", "-c", "import libvirt, libvirt_qemu")
    machine.run("wherry", "up", "/usr/share/doc/wherry/examples/hello.yaml")
    refused = machine("dpkg", "--remove", "wherry")
    assert refused.returncode == 1 and "wherry down --all --instances" in refused.stderr, refused.stderr
    machine.run("wherry", "down", "--all", "--yes")
    use(machine, "wherry", site)
    machine.run("wherry", "daemon", "start")
    machine.run("dpkg", "--remove", "wherry")
    assert machine.processes() == []  # the daemon ended before its files were removed; records stay
    machine.run("test", "-d", "/var/lib/wherry")
    machine.run("dpkg", "--purge", "wherry")
    left = "find / -xdev -path /srv -prune -o -iname '*wherry*' -print; find /run /tmp -iname '*wherry*'"
    assert machine.run("sh", "-c", left) == ""


def test_container_image(container: Container) -> None:
    (site,) = container.run("sh", "-c", "echo /usr/lib/wherry/lib/python3*/site-packages/wherry").split()
    use(container, "wherry", site)
    container.run("wherry", "daemon", "start")  # the container has outlived the daemon of `down --all`
