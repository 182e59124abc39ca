"""`wherry host add` and `remove` of bare hosts: the bundle that they get, lacking packages, agents that run from it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import RealInstance, eventually, real_instance
from sshhosts import ADDRESSES, SshLab, temporary_lab

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts are made by root"),
    pytest.mark.timeout(600),
]
URI = {host: f"ssh://root@{address}" for host, address in ADDRESSES.items()}
BUNDLES = "/var/lib/wherry/agent-bundles"
FABRIC = """\
kind: fabric
version: 1
name: one
driver: ssh
sites: [{{name: lab}}]
hosts:
  - {{name: {host}, site: lab, cores: 1, memory: 256MiB, uri: '{uri}'}}
"""
_BARE = (
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin; command -v python3; "
    "ls /usr/lib/python3*/os.py {checkout}/src /var/lib/wherry/* 2>/dev/null; true"
)
_MAPPED = (
    "for pid in $(pgrep -f '[-]m wherry.agent'); do readlink /proc/$pid/exe; grep -o '/.*' /proc/$pid/maps; done"
    " | sort -u"
)
_DATA = ("/dev", "/usr/lib/locale/", "/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.cache")
"""No code."""
_APT = """\
#!/bin/sh
echo "$@" >>/run/apt
case "$*" in *install*) umount /usr/sbin/nft;; esac
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[SshLab]:
    with temporary_lab() as created:
        yield created


@pytest.fixture(scope="module")
def world(lab: SshLab) -> Iterator[RealInstance]:
    """An instance without a fabric."""
    with real_instance("tsa", lab.namespaces.enter, below=lab.shared) as created:
        yield created


def fabric(world: RealInstance, host: str) -> str:
    return world.file(f"{host}.yaml", FABRIC.format(host=host, uri=URI[host]))


def test_bare_host_gets_the_bundle_once(world: RealInstance, lab: SshLab) -> None:
    checkout = Path(__file__).resolve().parents[2]
    assert lab.hosts["h1"].run("sh", "-c", _BARE.format(checkout=checkout)) == ""
    first = world.json("host", "add", URI["h1"])
    assert first["copied"] and lab.bundles("h1") == [first["bundle"]]
    assert first["facts"]["kernel"] == os.uname().release and first["facts"]["bundle"] == first["bundle"]
    assert first["facts"]["runtime"] and first["facts"]["cgroups"] in ("v1", "v2", "mixed")
    began = time.monotonic()
    again = world.json("host", "add", URI["h1"])
    assert not again["copied"] and again["bundle"] == first["bundle"]
    assert time.monotonic() - began < 60
    told = world("host", "add", URI["h1"])
    assert f"{first['bundle'][:12]} (was there)" in told.stdout and "CRIU" in told.stdout, told.stderr


def test_fabric_puts_it_where_it_is_not_and_agents_run_out_of_it(world: RealInstance, lab: SshLab) -> None:
    """With everything that they load: the host has no Python, and its C library is not used."""
    assert lab.bundles("h2") == []
    world.json("fabric", "up", fabric(world, "h2"))
    (digest,) = lab.bundles("h2")
    files = [line for line in lab.hosts["h2"].run("sh", "-c", _MAPPED).splitlines() if not line.startswith(_DATA)]
    assert files and [name for name in files if not name.startswith(f"{BUNDLES}/{digest}/")] == []
    assert {f"{BUNDLES}/{digest}/{name}" for name in ("bin/python", "lib/libc.so.6")} <= set(files)
    shown = world.json("host", "show", "h2")["host"]["facts"]
    assert shown["bundle"] == digest and shown["criu"]
    refused = world("host", "remove", URI["h2"])
    assert refused.returncode == 5 and world.instance.name in refused.stderr, refused.stderr
    world.json("fabric", "down")
    assert eventually(lambda: lab.left("h2", world.instance.name), []) == []
    world.json("host", "remove", URI["h2"])
    assert lab.hosts["h2"].run("find", "/var/lib/wherry", "-mindepth", "1") == ""


def test_bundle_that_was_changed_is_refused_until_it_is_added_again(world: RealInstance, lab: SshLab) -> None:
    digest = world.json("host", "add", URI["h1"])["bundle"]
    changed = f"{BUNDLES}/{digest}/packages/wherry/agent/server.py"
    lab.hosts["h1"].run("sh", "-c", f"echo 'import os' >>{changed}")
    refused = world("fabric", "up", fabric(world, "h1"))
    assert refused.returncode == 1, refused.stderr
    assert "damaged: packages/wherry/agent/server.py" in refused.stderr, refused.stderr
    assert f"wherry host add {URI['h1']}" in refused.stderr
    assert lab.agents("h1") == []
    assert world.json("host", "add", URI["h1"])["copied"]
    world.json("fabric", "up", fabric(world, "h1"))
    world.json("fabric", "down")


def test_lacking_packages_are_named_and_installed_when_the_user_agrees(world: RealInstance, lab: SshLab) -> None:
    host, apt = lab.hosts["h3"], lab.shared / "apt-get"
    apt.write_text(_APT)
    apt.chmod(0o755)
    host.run("mount", "--bind", "/dev/null", "/usr/sbin/nft")
    host.run("mount", "--bind", str(apt), "/usr/bin/apt-get")
    refused = world("host", "add", URI["h3"])
    assert refused.returncode == 4, refused.stderr
    assert "lacks Debian packages\n  why: nftables\n" in refused.stderr, refused.stderr
    assert f"host add {URI['h3']} --install" in refused.stderr
    assert host.run("sh", "-c", "cat /run/apt 2>/dev/null; true") == ""
    assert world.json("host", "add", URI["h3"], "--install")["installed"] == ["nftables"]
    said = host.run("cat", "/run/apt").splitlines()
    assert said[0].endswith("update") and said[1].endswith("install -y --no-install-recommends -- nftables")


def test_fabric_of_a_host_without_runtime_is_refused(world: RealInstance, lab: SshLab) -> None:
    host, runtimes = lab.hosts["h1"], [path for name in ("runc", "crun") if (path := shutil.which(name))]
    for path in runtimes:
        host.run("mount", "--bind", "/dev/null", path)
    try:
        refused = world("fabric", "up", fabric(world, "h1"))
    finally:
        for path in runtimes:
            host.run("umount", path)
    assert refused.returncode == 4 and f"wherry host add {URI['h1']} --install" in refused.stderr, refused.stderr
    world("fabric", "down")
    assert eventually(lambda: lab.left("h1", world.instance.name), []) == []


def test_machine_that_does_not_answer_or_is_none(world: RealInstance) -> None:
    silent = world("host", "add", "ssh://root@10.80.0.99")
    assert silent.returncode == 7 and "cannot be reached by SSH" in silent.stderr, silent.stderr
    for word in ("10.80.0.11", "ssh://-oProxyCommand=x"):
        refused = world("host", "add", word)
        assert refused.returncode == 2 and "ssh://root@HOST" in refused.stderr, refused.stderr
