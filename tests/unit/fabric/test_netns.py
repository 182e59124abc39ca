"""The netns fabric: other threads that use it, a host that is down, changes of ports, and announcements of nodes."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import waiting
from names import own_name
from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.fabric import libvirt_hosts, link_probe, netlink, netns_links, site_links, vpn_catalog
from wherry.fabric.cluster_paths import ClusterPaths
from wherry.fabric.link_emulator import LinkEmulator
from wherry.fabric.netlink import Announcer, Switch
from wherry.fabric.netns import NetnsFabric
from wherry.fabric.packet_hold import NetnsPacketHold
from wherry.fabric.run_program import output_of
from wherry.fabric.vpn_tunnel import Tunnel
from wherry.model.network import network_of
from wherry.model.spec.fabric import FabricSpec

INSTANCE = Instance(own_name("tnfa"))
HOSTS = [{"name": f"{site}1", "site": site, "cores": 1, "memory": "1GiB"} for site in "ab"]
SPEC = FabricSpec.model_validate(
    {"kind": "fabric", "version": 1, "name": "x", "sites": [{"name": "a"}, {"name": "b"}], "hosts": HOSTS}
)


def ends_soon(act: Callable[[], object]) -> bool:
    """True when `act` ends in a thread of its own."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(waiting.bound())
    return not thread.is_alive()


def test_programs_are_run_for_facts_without_the_lock_that_ports_need() -> None:
    free = []
    fabric = NetnsFabric(SPEC, INSTANCE, lambda: free.append(ends_soon(fabric._lock.acquire)) or "4.0")  # type: ignore[func-returns-value]
    assert fabric.facts("a1").criu == "4.0" and free == [True]
    assert fabric.facts("a1").criu == "4.0" and len(free) == 1


def test_a_repair_does_not_wait_for_a_link_that_is_being_changed() -> None:
    fabric = NetnsFabric(SPEC, INSTANCE)
    with fabric._links.lock:
        assert ends_soon(fabric.repair)


@pytest.mark.parametrize("name", ["emulator", "tunnel"])
def test_the_state_of_a_link_and_its_repair_share_its_processes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Also when one asks for them while the other makes them."""
    links, link = NetnsFabric(SPEC, INSTANCE)._links, SPEC.effective_links()[0]
    number, others = itertools.count(), list[object]()

    def get() -> object:
        return links._emulator(link) if name == "emulator" else links._tunnel(SPEC, link, "openvpn")

    def make(*_given: Any) -> object:
        if not next(number):
            others.append(get())
        return object()

    monkeypatch.setattr(site_links, "LinkEmulator", make)
    monkeypatch.setitem(vpn_catalog.KINDS, "openvpn", cast("type[Tunnel]", make))
    assert [get()] == others


def test_a_kernel_that_does_not_answer_is_named_as_the_reason() -> None:
    switch, (ours, _silent) = Switch.__new__(Switch), socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.settimeout(0.05)
    switch._netns, switch._lock, switch._sequence, switch._socket = "/run/netns/x", threading.Lock(), 0, ours
    with pytest.raises(Failed) as caught:
        switch.set_up("up0", True)
    assert caught.value.why == "timed out"


def test_host_names_that_could_share_a_namespace_are_refused_on_real_hosts_too() -> None:
    hosts = [
        {"name": name, "site": "a", "cores": 1, "memory": "1GiB", "uri": f"qemu+ssh://10.0.0.{index}/system"}
        for index, name in enumerate(("a", "a-b"), 1)
    ]
    spec = {"kind": "fabric", "version": 1, "name": "x", "driver": "libvirt", "bridge": "br0", "sites": [{"name": "a"}]}
    with pytest.raises(Refused) as caught:
        libvirt_hosts.check(FabricSpec.model_validate({**spec, "hosts": hosts}))
    assert caught.value.code == Code.UNSUPPORTED and "a-b begins with the name a" in caught.value.what


@pytest.mark.parametrize(
    ("words", "seconds", "code", "why"),
    [
        (["sleep", "3600"], 0.1, Code.TIMED_OUT, "sleep did not end within 0.1 s"),
        (["no-such-program"], 60.0, Code.UNSUPPORTED, "no-such-program is not installed"),
        (["sh", "-c", "echo broken >&2; exit 3"], 60.0, Code.FAILED, "broken"),
        (["false"], 60.0, Code.FAILED, "false ended with 1"),
    ],
)
def test_a_program_that_does_not_succeed_is_an_error_for_users(
    words: list[str], seconds: float, code: Code, why: str
) -> None:
    with pytest.raises(Failed) as caught:
        output_of(words, "it failed", "install it", seconds=seconds)
    assert (caught.value.code, caught.value.what, caught.value.why) == (code, "it failed", why)
    assert output_of(["cat"], "it failed", "install it", given="text") == "text"


def test_a_hold_that_has_ended_is_dropped_without_an_error() -> None:
    hold = NetnsPacketHold.__new__(NetnsPacketHold)
    hold._name = "the hold"
    pipe = subprocess.PIPE
    hold._process = subprocess.Popen(["true"], stdin=pipe, stdout=pipe, stderr=pipe)
    hold._process.wait()
    with pytest.raises(Failed, match="ended before"):
        hold._tell("divert")
    hold.drop()
    assert hold._process.stdout and hold._process.stdout.closed


@pytest.mark.usefixtures("thousand_descriptors")
def test_a_hold_is_heard_in_a_daemon_with_a_thousand_descriptors() -> None:
    hold = NetnsPacketHold.__new__(NetnsPacketHold)
    with subprocess.Popen(["echo", '{"event": "ready"}'], stdout=subprocess.PIPE) as hold._process:
        assert hold._process.stdout is not None
        with hold._process.stdout as low:  # whatever descriptor another thread has just closed
            hold._process.stdout = os.fdopen(fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1025), "rb")
        assert hold._expect("ready") == {"event": "ready"}


@pytest.mark.usefixtures("thousand_descriptors")
def test_an_emulator_is_heard_in_a_daemon_with_a_thousand_descriptors(tmp_path: Path) -> None:
    link = LinkEmulator(tmp_path / "control", "a--b")
    assert link._spawn(["echo", '{"event": "ready"}']) is None


@pytest.fixture(scope="module")
def fabric() -> Iterator[NetnsFabric]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces are root's")
    fabric = NetnsFabric(SPEC, INSTANCE)
    fabric.down()
    fabric.up()
    yield fabric
    fabric.down()
    for directory in (INSTANCE.run, INSTANCE.state):
        shutil.rmtree(directory, ignore_errors=True)


def test_a_link_is_measured_as_silent_while_a_host_is_down(
    fabric: NetnsFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_probe, "_SLACK", 0.3)
    for host in ("a1", "b1"):
        fabric.set_down(host, True)
        measure = fabric.measure_link(SPEC.effective_links()[0], bandwidth=True)
        assert (measure.latency, measure.latency_back, measure.there, measure.back) == (None, None, None, None)
        fabric.set_down(host, False)


def test_a_link_is_joined_to_no_bridge_that_is_not_there(fabric: NetnsFabric) -> None:
    """As when the bridge to real hosts is gone after a reboot: the cluster's head would be cut off silently."""
    for join in (lambda ip: ip.up("up0", "gone"), lambda ip: ip.attach("up0", "gone", 1500)):
        with pytest.raises(Failed, match="up0 was not joined to the bridge gone: there is no link gone"):
            netns_links.inside(fabric.host_netns("a1"), join)


def test_a_vpn_whose_addresses_are_used_up_is_refused() -> None:
    sites = [{"name": f"s{number}"} for number in range(258)]
    links = [{"between": [f"s{number}", f"s{number + 1}"]} for number in range(257)]
    links[256]["overlay"] = "openvpn"  # type: ignore[assignment]
    spec = FabricSpec.model_validate(
        SPEC.model_dump() | {"sites": sites, "links": links, "hosts": [HOSTS[0] | {"site": "s0"}]}
    )
    if not vpn_catalog.missing_programs("openvpn"):
        with pytest.raises(Refused, match="s256--s257 cannot have a VPN"):
            site_links.check(spec)


def test_frames_are_flooded_no_more_to_ends_that_left(fabric: NetnsFabric) -> None:
    """Of a cluster on hosts that a batch system gives to somebody else; doing it twice changes nothing."""
    netns, ends = fabric.host_netns("a1"), [netns_links.Remote("10.1.1.1"), netns_links.Remote("10.1.1.2", 4000)]

    def flooded(name: str = "x9") -> list[str]:
        text = output_of(["nsenter", f"--net={netns}", "bridge", "fdb", "show", "dev", name], "no fdb", "")
        return sorted(line.split()[2] for line in text.splitlines() if line.startswith("00:00:00:00:00:00 dst "))

    def act(of: Callable[[netns_links.NetnsLinks], object]) -> None:
        netns_links.inside(netns, of)

    act(lambda ip: ip.vxlan("x9", 9, fabric.host_address("a1"), []))
    act(lambda ip: ip.vxlan("x8", 8, fabric.host_address("a1"), ["10.1.1.1"]))
    for _ in range(2):
        act(lambda ip: ip.flood_only("x9", ends))
        assert flooded() == ["10.1.1.1", "10.1.1.2"]
    for _ in range(2):
        act(lambda ip: ip.flood_only("x9", ends[1:]))
        assert flooded() == ["10.1.1.2"]
    act(lambda ip: ip.flood_only("x9", []))
    assert flooded() == [] and flooded("x8") == ["10.1.1.1"]


# The thread by which paths follow the ports: changes are kept when the kernel refuses it.


def test_paths_follow_ports_again_after_a_thread_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next change begins another thread, which applies both."""
    applied: list[str] = []
    paths = ClusterPaths(None, {}, 1450, lambda number: network_of("10.77.0.0/16", number))  # type: ignore[arg-type]
    monkeypatch.setattr(paths, "_read", lambda network: None)
    monkeypatch.setattr(paths, "_update", lambda network: None)
    start = threading.Thread.start

    def refused(_thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    network = network_of("10.77.0.0/16", 1)
    monkeypatch.setattr(threading.Thread, "start", refused)
    paths._later(network, 0, lambda: applied.append("first"))
    monkeypatch.setattr(threading.Thread, "start", start)
    paths._later(network, 1, lambda: applied.append("second"))
    waiting.until(lambda: applied == ["first", "second"], "both changes are applied")


# A busy processor drops frames before they leave: a node's announcement is sent until one is taken.


class Busy:
    """A packet socket whose first frames are refused."""

    def __init__(self, *refusals: int) -> None:
        self.refusals, self.sent = list(refusals), 0

    def send(self, _frame: bytes) -> None:
        if self.refusals:
            number = self.refusals.pop(0)
            raise OSError(number, os.strerror(number))
        self.sent += 1


def announcer(busy: Busy) -> Announcer:
    made = Announcer.__new__(Announcer)
    made._frame, made._socket = b"", cast(Any, busy)
    return made


def test_an_announcement_that_is_dropped_is_sent_again() -> None:
    busy = Busy(errno.ENOBUFS, errno.ENOBUFS)
    announcer(busy).announce()
    assert busy.sent == 1


def test_it_is_not_sent_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "_FULL", 0.05)
    with pytest.raises(OSError, match="buffer space"):
        announcer(Busy(*[errno.ENOBUFS] * 1000)).announce()


def test_an_interface_that_is_down_is_told_at_once() -> None:
    busy = Busy(errno.ENETDOWN)
    with pytest.raises(OSError, match="down"):
        announcer(busy).announce()
    assert busy.sent == 0
