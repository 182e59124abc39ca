"""Nodes on Xen hosts: calls of libvirt, the URIs that are accepted, and a move's steps with a libvirt in memory."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import hypothesis
import pytest
from fakeclock import Clock
from hypothesis import strategies as st
from xenworld import FABRIC, HOSTS, INSTANCE, KEY, RUNS_AT_1, RUNS_AT_2, Domain, World, driver, place, states, world

import waiting
from wherry.base.errors import Code, Failed, Refused
from wherry.fabric.fake import FakeFabric
from wherry.model.libvirt_uri import TRANSPORTS, parse_uri
from wherry.model.migration_parameters import MigrationParameters
from wherry.model.owner import Owner
from wherry.model.spec.cluster import ClusterSpec, NicSpec
from wherry.model.spec.fabric import FabricSpec
from wherry.model.spec.parse import parse
from wherry.node.protocol import Usage
from wherry.node.vm import guest_config
from wherry.node.vm.domain_names import remote_domain_id
from wherry.node.vm.host_connections import processor
from wherry.node.vm.real import driver as real_driver
from wherry.node.vm.real import xen_mover, xen_xml
from wherry.node.vm.real.xen import XenDriver

__all__ = ["driver", "world"]  # fixtures


def test_a_guest_is_described() -> None:
    text = xen_xml.describe(INSTANCE, place("x1", nic=NicSpec(checksum_offload=False)), "/k", "/i")
    root = ElementTree.fromstring(text)
    assert root.get("type") == "xen" and root.findtext("name") == "wherry-tx-c-0" and root.findtext("vcpu") == "2"
    kind = root.find("os/type")
    assert kind is not None and (kind.text, kind.get("machine")) == ("xenpvh", "xenpvh")
    timer, nic, console = (root.find(f"{path}") for path in ("clock/timer", "devices/interface", "devices/console"))
    assert timer is not None and timer.attrib == {"name": "tsc", "mode": "native"}
    assert nic is not None and [child.attrib for child in nic] == [
        {"address": "02:77:00:00:01:00"},
        {"bridge": "xenbr0"},
    ]
    assert console is not None and console.get("type") == "pty"
    words = (root.findtext("os/cmdline") or "").split()
    assert {"console=hvc0", "wherry.name=c-0", "wherry.address=10.77.1.1/24", "wherry.checksum=off"} <= set(words)
    assert KEY not in text


def test_a_guest_without_the_processors_help() -> None:
    kind = ElementTree.fromstring(xen_xml.describe(INSTANCE, place("x1", guest="pv"), "/k", "/i")).find("os/type")
    assert kind is not None and (kind.text, kind.get("machine")) == ("xen", "xenpv")


def test_what_a_guest_is_given_is_an_archive_of_its_own() -> None:
    archive = BytesIO(guest_config.archive(place("x1"))).read()
    assert archive.startswith(b"070701") and len(archive) % 4 == 0
    assert all(text in archive for text in (b"given/key\0", KEY.encode(), b"given/hosts\0", b"127.0.0.1 localhost\n"))


@pytest.mark.parametrize(
    "text", ["xen+tcp://10.0.0.1/", "xen+tls://h1.lan:16514/", "xen+ssh://root@h1/", "xen+tcp://h"]
)
def test_good_uris(text: str) -> None:
    assert str(parse_uri(text)) == (text if text.endswith("/") else f"{text}/")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no URI"),
        ("h1", "no URI"),
        ("xen:///", "transport must be ssh, tls or tcp"),
        ("xen+ext://h/?command=/bin/sh", "transport must be ssh, tls or tcp"),
        ("xen+ssh://h/?command=/bin/sh", "parameters are refused"),
        ("lxc+ssh://h/", "hypervisor must be qemu or xen"),
        ("xen+tcp:///", "'' is no name"),
        ("xen+ssh://-oProxyCommand=x/", "is no name"),
        ("xen+ssh://-x@h/", "a user is a name"),
        ("xen+tcp://root@h/", "for xen+ssh only"),
        ("xen+tcp://h:0/", "'0' is no port"),
        ("xen+tcp://h:65536/", "is no port"),
        ("xen+tcp://h/x", "the path of a Xen host is /"),
        ("xen+tcp://h\n/", "is no name"),
        ("xen+tcp://h/\n", "the path"),
    ],
)
def test_bad_uris(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("+", r"\+")):
        parse_uri(text)


@hypothesis.given(st.text(max_size=40) | st.from_regex(r"xen\+(tcp|ssh)://[ -~]{0,20}/?", fullmatch=True))
def test_what_passes_is_a_name_and_no_option(text: str) -> None:
    try:
        uri = parse_uri(text)
    except ValueError:
        return
    assert uri.transport in TRANSPORTS and not uri.host.startswith("-") and not uri.user.startswith("-")
    assert parse_uri(str(uri)) == uri


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": [HOSTS[0] | {"uri": ""}]}, "host x1 has no uri"),
        ({"hosts": [HOSTS[0] | {"uri": "xen:///"}]}, "hosts.0.uri: 'xen:///'"),
        ({"hosts": [HOSTS[0], HOSTS[1] | {"uri": HOSTS[0]["uri"]}]}, "two hosts have the same uri"),
        ({"hosts": [HOSTS[0] | {"facts": {"without_files": ["/x"]}}]}, "host x1 is real"),
        ({"hosts": [HOSTS[0] | {"bridge": "br0; x"}]}, "hosts.0.bridge"),
        ({"driver": "netns", "bridge": None}, "real hosts need driver: libvirt"),
        ({"bridge": None}, "name this machine's bridge"),
        ({"bridge": "a/b"}, "bridge"),
        ({"links": [{"between": ["a", "b"]}], "sites": [{"name": "a"}, {"name": "b"}]}, "cannot be changed"),
    ],
)
def test_bad_fabrics(change: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused) as caught:
        parse(FabricSpec, FABRIC | change, "FILE")
    assert caught.value.code == Code.INVALID_FILE and words in caught.value.why


def test_what_libvirt_says_of_a_processor() -> None:
    cpu = "<cpu><arch>x86_64</arch><model>EPYC</model><feature name='avx'/></cpu>"
    assert processor(f"<capabilities><host>{cpu}</host></capabilities>") == ("EPYC", frozenset({"avx"}))
    assert processor("<capabilities><host/></capabilities>") == ("unknown", frozenset())


def test_start_and_stop(world: World, driver: XenDriver) -> None:
    driver.start(place("x1"))
    assert states(world) == RUNS_AT_1 and driver.alive(place("x1"))
    assert driver.usage(place("x1")) == Usage(memory=150 << 20, cpu=3.0, processes=1)
    (kernel, whole) = sorted(world.files["x1"])  # the RAM disk, which has the key, is gone
    assert whole == f"{kernel}.whole" and world.files["x1"][kernel] == b"a kernel"
    driver.stop(place("x1"))
    driver.stop(place("x1"))
    assert states(world) == {"x1": [], "x2": []} and not driver.alive(place("x1"))


def test_only_our_domains_are_touched(world: World, driver: XenDriver) -> None:
    other = Domain(world, "x1", "wherry-tx-c-0", "5b6f8f0e-0000-0000-0000-000000000000", World.VIR_DOMAIN_RUNNING)
    world.domains["x1"].append(other)
    driver.stop(place("x1"))
    assert world.domains["x1"] == [other] and not driver.alive(place("x1"))


def test_a_host_that_is_silent_has_not_lost_its_nodes(world: World, driver: XenDriver) -> None:
    driver.start(place("x1"))
    world.dead.add("x1")
    assert driver.alive(place("x1"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(xen_mover, "time", clock)
    monkeypatch.setattr(xen_mover, "answers", lambda _where, _seconds: False)  # it is asked by a thread of its own
    return clock


def moved(driver: XenDriver) -> xen_mover.XenMover:
    """A mover that has done everything before the commit."""
    mover = driver.mover(place("x1"), place("x2"))
    mover.limit_rate(None)
    mover.prepare()
    mover.round(1)
    mover.freeze()
    mover.transfer()
    mover.restore()
    return mover


def test_a_move(world: World, driver: XenDriver) -> None:
    driver.start(place("x1"))
    mover = moved(driver)
    assert states(world) == {"x1": [], "x2": [World.VIR_DOMAIN_PAUSED]} and mover.switched()
    for _ in range(2):
        mover.release()
        mover.thaw()
    assert mover.await_first_run() is not None
    mover.close()
    assert states(world) == RUNS_AT_2


def test_a_round_ends_when_the_node_stands(
    world: World, driver: XenDriver, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.start(place("x1"))
    world.proceed.clear()
    world.work = 1_000_000
    mover = driver.mover(place("x1"), place("x2"))
    mover.prepare()

    def stop(_text: str) -> None:
        world.work, world.domains["x1"][0].now = 0, World.VIR_DOMAIN_PAUSED

    done = mover.round(1, stop)
    assert (
        done.dirty == 0
        and done.seconds > xen_mover._PROGRESS_INTERVAL + xen_mover._IDLE
        and mover.freeze() > xen_mover._IDLE
    )
    assert states(world)["x2"] == []  # libvirt is not done
    world.proceed.set()
    waiting.until(mover._ended, "the end of the migration")
    mover.transfer()
    assert states(world)["x2"] == [World.VIR_DOMAIN_PAUSED]


def test_a_host_that_tells_nothing_tells_not_that_the_node_runs(
    world: World, driver: XenDriver, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it ends its copy, for example: the node counts as stopped since it was last seen to run."""
    driver.start(place("x1"))
    world.proceed.clear()
    mover = driver.mover(place("x1"), place("x2"))
    mover.prepare()
    asked, began = Domain.info, clock.now

    def busy(domain: Domain) -> list[int]:
        """Answers at first, and once after a long silence."""
        silent = (clock.now - began) / xen_mover._IDLE
        if silent > 4 and not world.proceed.is_set():
            world.proceed.set()
        if silent == 0 or 2 < silent < 2.1:
            return asked(domain)
        raise World.libvirtError(0)

    monkeypatch.setattr(Domain, "info", busy)
    mover.round(1)
    assert world.proceed.is_set() and mover.freeze() == clock.now - began


def test_a_host_that_answers_late_does_not_end_a_round(
    world: World, driver: XenDriver, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers take longer than a node may be stopped; every second one shows that the node has worked."""
    driver.start(place("x1"))
    world.proceed.clear()
    mover = driver.mover(place("x1"), place("x2"))
    mover.prepare()
    asked, told = Domain.info, list[int]()

    def late(domain: Domain) -> list[int]:
        clock.now += 2 * xen_mover._IDLE
        world.work = 0 if len(told) % 4 else 1_000_000  # two for each look
        told.append(1)
        if len(told) == 12:
            world.proceed.set()
        return asked(domain)

    monkeypatch.setattr(Domain, "info", late)
    mover.round(1)
    assert world.proceed.is_set()
    mover.transfer()


def test_the_orphan_of_a_move_that_failed_is_removed(world: World, driver: XenDriver) -> None:
    driver.start(place("x1"))
    world.lose = True
    mover = driver.mover(place("x1"), place("x2"))
    mover.prepare()
    with pytest.raises(Failed, match="could not migrate") as caught:
        mover.round(1)
        mover.transfer()
    assert "on x2" in caught.value.next and "xl destroy wherry-tx-c-0" in caught.value.next
    assert states(world)["x2"] == [World.VIR_DOMAIN_PAUSED]
    for anew in (mover, driver.mover(place("x1"), place("x2"))):
        assert not anew.switched()
        anew.roll_back()
        assert states(world) == RUNS_AT_1


def test_an_orphan_that_nobody_could_remove_is_removed_before_the_next_move(world: World, driver: XenDriver) -> None:
    driver.start(place("x1"))
    uuid = remote_domain_id(INSTANCE, "c-0")
    world.domains["x2"].append(Domain(world, "x2", "wherry-tx-c-0", uuid, World.VIR_DOMAIN_PAUSED))
    mover = moved(driver)
    mover.release()
    mover.thaw()
    assert states(world) == RUNS_AT_2


def test_what_is_at_a_destination_that_died_is_ended_when_it_answers(
    world: World, driver: XenDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = dict[str, bool]()

    def write(path: Path, data: bytes, *, lasting: bool = False) -> None:
        kept[path.name] = lasting
        path.write_bytes(data)

    monkeypatch.setattr(real_driver, "write_atomically", write)
    driver.start(place("x1"))
    world.lose = True
    mover = driver.mover(place("x1"), place("x2"))
    mover.prepare()
    with pytest.raises(Failed):
        mover.transfer()
    world.dead.add("x2")
    mover.roll_back()
    mover.close()
    assert driver.alive(place("x1")) and states(world)["x2"] == [World.VIR_DOMAIN_PAUSED]
    world.dead.clear()
    reborn = XenDriver(INSTANCE, driver.fabric, driver.connections)
    assert reborn.orphans() == [("c-0", "x2")]
    reborn.end_orphan("c-0", "x2")
    assert reborn.orphans() == [] and states(world) == RUNS_AT_1
    assert kept == {"x1": True, "x2": True, "c-0@x2": True}, "after a power cut nobody else would know"


def test_an_orphan_is_told_from_the_node(world: World, driver: XenDriver) -> None:
    """The node has moved to where its orphan was: nothing is left to be ended there."""
    driver.start(place("x1"))
    world.dead.add("x2")
    driver.abandon(place("x2"))
    world.dead.clear()
    mover = moved(driver)
    mover.release()
    mover.thaw()
    assert driver.alive(place("x2")) and driver.orphans() == []


def test_the_bridge_of_the_destination() -> None:
    text = xen_xml.describe(INSTANCE, place("x1"), "/k", "/i")
    assert xen_mover.at_bridge(text, "br7") == xen_xml.describe(INSTANCE, place("x2", device="br7"), "/k", "/i")


def test_what_is_refused_before_a_move(driver: XenDriver) -> None:
    assert driver.parameters_obstacle(MigrationParameters()) == ""
    for way in (
        MigrationParameters(mode="post-copy"),
        MigrationParameters(connections=2),
        MigrationParameters.model_validate({"downtime": "100ms"}),
    ):
        assert "Xen" in driver.parameters_obstacle(way)
    assert driver.move_obstacle(place("x1"), place("x2")) == ""
    assert "CONFIG_SHADOW_PAGING" in driver.move_obstacle(place("x1", guest="pv"), place("x2", guest="pv"))
    assert "no rate limit" in driver.rate_obstacle(1e12)
    others: list[tuple[dict[str, Any], str]] = [
        ({"nic": NicSpec(model="e1000")}, "e1000"),
        ({"nic": NicSpec(queues=2), "cpus": 2}, "nic.queues"),
        ({"image": "/srv/x.qcow2"}, "a disk"),
    ]
    for keys, words in others:
        spec = ClusterSpec(kind="vm", name="c", nodes=1, **keys)
        with pytest.raises(Refused, match=words):
            driver.check(spec.flavor(0), Owner(uid=0, gid=0, home="/", cwd="/"))


def test_pv_moves_where_xen_has_shadow_paging(world: World) -> None:
    hosts = [host | {"shadow_paging": True} for host in HOSTS]
    fabric = FakeFabric(parse(FabricSpec, FABRIC | {"hosts": hosts}, "FILE"))
    driver = XenDriver(INSTANCE, fabric, world)  # type: ignore[arg-type]
    assert driver.move_obstacle(place("x1", guest="pv"), place("x2", guest="pv")) == ""
