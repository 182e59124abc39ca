"""The wheel, the Debian package and the container image, each installed on a bare Debian, used, and removed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from baremachine import TOP, BareMachine, bare_machine

from names import own_name

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines are made by root"),
    pytest.mark.skipif("WHERRY_LONG_TESTS" not in os.environ, reason="it installs machines: make test-packages"),
    pytest.mark.timeout(3600),
]
SUITE = "bookworm"


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


def use(machine: BareMachine, wherry: str, site: str) -> None:
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
    assert machine.run("find", site, site + "_tiles", "-not", "-name", "*.pyc", "-type", "f") == ""


def test_debian_package(machine: BareMachine) -> None:
    machine.install(machine.put(made("wherry_*.deb")), "mpich", "systemd")
    assert machine.run("wherry", "version").strip() in machine.run("dpkg-query", "-W", "-f", "${Version}", "wherry")
    (site,) = machine.run("sh", "-c", "echo /usr/lib/wherry/lib/python3*/site-packages/wherry").split()
    assert machine.run("systemd-analyze", "verify", "/usr/lib/systemd/system/wherryd.socket") == ""
    assert machine("test", "-L", "/etc/systemd/system/sockets.target.wants/wherryd.socket").returncode == 0
    for file in ("man/man1/wherry.1.gz", "bash-completion/completions/wherry", "doc/wherry/examples/hello.yaml"):
        machine.run("test", "-s", f"/usr/share/{file}")
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
