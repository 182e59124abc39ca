"""Hosts by SSH: their files, directories that are not shared, kernels, and the note of hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import SecretStr, ValidationError
from ssh_world import spec

from wherry.base.errors import Code, LostContact, Refused
from wherry.base.paths import Instance
from wherry.base.two_kernels import SWITCH
from wherry.fabric import ssh_hosts
from wherry.hostlink.interface import Arguments, Method
from wherry.hostlink.link import HostLink
from wherry.hostlink.values import to_plain
from wherry.model.records import Node
from wherry.model.spec.fabric import FabricSpec
from wherry.node.container.host import Uses
from wherry.node.container.remote_host import RemoteHosts
from wherry.node.protocol import Placement


def test_file_with_hosts_by_ssh() -> None:
    known = spec()
    assert [host.wire for host in known.hosts] == ["127.0.0.1", "127.0.0.2"] and known.hypervisor == ""
    ssh_hosts.check(known)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"uri": ""}, "no uri by which SSH"),
        ({"uri": "qemu+ssh://h1/system"}, "no uri by which SSH"),
        ({"uri": "ssh://h1"}, "name its IPv4 address"),
        ({"address": "fe80::1"}, "address"),
        ({"address": "127.0.0.2"}, "same address"),
        ({"speed": 0.5}, "speed"),
        ({"bridge": "br0"}, "bridge"),
        ({"facts": {"without_files": ["/x"]}}, "facts"),
    ],
)
def test_file_that_says_what_such_hosts_do_not_have_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        spec(**change)


def test_address_is_for_hosts_by_ssh_alone() -> None:
    host = {"name": "h1", "site": "a", "cores": 2, "memory": "1GiB", "address": "10.0.0.1"}
    file = {"kind": "fabric", "version": 1, "name": "f", "sites": [{"name": "a"}], "hosts": [host]}
    with pytest.raises(ValidationError, match="only for driver: ssh"):
        FabricSpec.model_validate(file)


def test_name_of_the_gateway_is_refused() -> None:
    with pytest.raises(Refused, match="gateway"):
        ssh_hosts.check(spec(name="gateway"))


class Link:
    """A stream to a host with these mounts."""

    def __init__(self, boot: str, mounts: list[str]) -> None:
        self.boot, self._mounts = boot, mounts

        self.kernel_obstacle, self.lack = "", ""

    def call(self, target: str, method: Method, arguments: Arguments) -> Any:
        assert target == "containers"
        if method.name == "uses":
            return to_plain(Uses(process=77))
        if method.name == "lacks":
            assert arguments.plain == {"used": to_plain(Uses(process=77))}
            return self.lack
        assert (arguments.plain, method.name in ("mount_points", "kernel_obstacle")) == ({}, True)
        return self._mounts if method.name == "mount_points" else self.kernel_obstacle


class Files:
    """A fabric whose hosts have `boots`, and see the files below `seen`."""

    def __init__(self, boots: dict[str, str], seen: Path | None = None) -> None:
        self.lost, self.boots, self.seen = set[str](), boots, seen
        self.asked = list[str]()
        self.mounts = dict[str, list[str]]()
        self.said = dict[str, tuple[str, str]]()
        """By host: `kernel_obstacle` and `lack` for nodes of another kernel."""
        self.connections = self

    def link(self, host: str) -> HostLink:
        if host not in self.boots:
            raise LostContact(Code.UNREACHABLE, f"host {host} does not answer")
        made = Link(self.boots[host], self.mounts.get(host, []))
        made.kernel_obstacle, made.lack = self.said.get(host, ("", ""))
        return cast(HostLink, made)

    def unseen_files(self, host: str, paths: list[str]) -> list[str]:
        self.asked += paths
        return [path for path in paths if self.seen is None or not Path(path).is_relative_to(self.seen)]


def test_nodes_move_between_hosts_with_one_kernel_alone() -> None:
    hosts = RemoteHosts(Files({"h1": "x", "h2": "x", "h3": "y"}))
    assert hosts.pair_obstacle("h1", "h2") == ""
    assert "two machines" in hosts.pair_obstacle("h1", "h3")
    assert hosts.pair_obstacle("h1", "h9") == ""  # the next request reports that it is silent


def test_nodes_move_between_two_kernels_when_the_daemon_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    files = Files({"h1": "x", "h2": "x", "h3": "y"})
    hosts, here = RemoteHosts(files), place(Path("/home"))
    there = {host: here.model_copy(update={"host": host}) for host in files.boots}
    assert hosts.pair_obstacle("h1", "h3") == ""
    assert hosts.node_obstacle(there["h1"], there["h3"]) == ""
    files.said["h3"] = "its kernel is too old", "libc.so.6 has another content there"
    assert hosts.pair_obstacle("h1", "h3").endswith("two machines: at host h3 its kernel is too old")
    assert hosts.pair_obstacle("h3", "h1") == ""  # the destination makes the clocks
    assert hosts.node_obstacle(there["h1"], there["h3"]) == "at host h3: libc.so.6 has another content there"
    assert hosts.node_obstacle(there["h1"], there["h2"]) == ""  # one kernel, so nothing is asked
    monkeypatch.delenv(SWITCH)
    assert SWITCH in hosts.pair_obstacle("h1", "h3")


def test_destination_has_the_mounts_that_nodes_see() -> None:
    files = Files({"h1": "x", "h2": "x"})
    files.mounts = {"h1": ["/home", "/scratch"], "h2": ["/home", "/opt"]}
    hosts = RemoteHosts(files)
    assert hosts.pair_obstacle("h1", "h2") == "host h2 has nothing mounted at /scratch, which nodes see at h1"
    assert "mounted at /opt" in hosts.pair_obstacle("h2", "h1")


def test_what_nodes_see_of_their_memory_does_not_change_with_a_move() -> None:
    files, shown = Files({"h1": "x", "h2": "x"}), ["/proc/meminfo", "/proc/cpuinfo"]
    for mounts in ({"h1": shown}, {"h2": shown}, {"h1": shown, "h2": shown}):
        files.mounts = mounts
        refused = "apt-get install lxcfs" in RemoteHosts(files).pair_obstacle("h1", "h2")
        assert refused == (len(mounts) == 1)


def place(directory: Path) -> Placement:
    node = Node(
        name="c-0", cluster="c", index=0, kind="container", host="h1", address="10.77.1.1", mac="02:77:0a:4d:01:00",
        cpus=1, memory=1 << 27, state="running",
    )  # fmt: skip
    user = f"{os.getuid()}:{os.getgid()}:"
    return Placement(
        node=node, host="h1", netns="/n", cgroup="g", key=SecretStr("k"), user=user, binds=(str(directory),)
    )


def test_directory_that_the_host_does_not_share_is_refused(tmp_path: Path) -> None:
    """The file that was made there to find out is removed."""
    with pytest.raises(Refused, match=r"would not see your files.*not the same directory"):
        RemoteHosts(Files({})).of("h1").start(place(tmp_path), lambda: None)
    assert not list(tmp_path.iterdir())


def test_directory_that_the_host_shares_is_not(tmp_path: Path) -> None:
    files = Files({}, tmp_path)
    with pytest.raises(LostContact):  # the next step asks the host itself
        RemoteHosts(files).of("h1").start(place(tmp_path), lambda: None)
    assert len(files.asked) == 1 and not list(tmp_path.iterdir())


def test_silent_host_has_not_lost_its_nodes_and_a_lost_one_has(tmp_path: Path) -> None:
    files = Files({})
    assert RemoteHosts(files).of("h1").alive(place(tmp_path))
    files.lost.add("h1")
    assert not RemoteHosts(files).of("h1").alive(place(tmp_path))
    RemoteHosts(files).of("h1").stop(place(tmp_path))


def test_identity_and_note_of_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    instance = Instance("main")
    word = ssh_hosts.identity(instance)
    assert len(word) == 32 and ssh_hosts.identity(instance) == word
    assert ssh_hosts.noted(instance) == {}
    ssh_hosts.remember(instance, spec())
    noted = ssh_hosts.noted(instance)
    assert noted["h2"].uri == "ssh://h2:22" and noted["h1"].setup.peers == ("127.0.0.2",)
    assert noted["h1"].setup.memory == 1 << 30 and noted["h1"].setup.head.startswith("127.")
    ssh_hosts.forget(instance)
    assert ssh_hosts.noted(instance) == {}


# The note of hosts by SSH, by which they are found without the database.


def test_hosts_that_do_not_answer_stay_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    instance = Instance("main")
    kept = list[bool]()
    write = ssh_hosts.write_atomically

    def noting(*words: Any, lasting: bool = False) -> None:
        kept.append(lasting)
        write(*words, lasting=lasting)

    monkeypatch.setattr(ssh_hosts, "write_atomically", noting)
    ssh_hosts.remember(instance, spec())
    ssh_hosts.sweep(instance, Files({}))
    assert ssh_hosts.noted(instance).keys() == {"h1", "h2"}
    assert kept == [True, True], "after a power cut nobody else would know where nodes run on"
