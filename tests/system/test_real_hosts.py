"""Nodes on real hosts: two libvirtds with QEMU, reached by TLS; jobs, moves, drain, removal."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from qemuhosts import ADDRESSES, PROGRAMS, QemuLab, qemu_lab, sshd
from realworld import SECONDS, RealInstance, eventually, missing_for_vms, real_instance

from names import own_name

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.timeout(900),
]
IMAGE = own_name("tqh")
BEGAN = dict(zip(("pair-0", "pair-1"), ADDRESSES, strict=True))
"""Initial node -> host: those are alike, so nodes have them in their order."""
FABRIC = """\
kind: fabric
version: 1
name: qemu
driver: libvirt
bridge: lan0
sites: [{name: q}]
hosts:
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[QemuLab]:
    """The hosts, whose files are removed with the directory."""
    if reason := missing_for_vms(PROGRAMS):
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix=f"wherry-{IMAGE}-", dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        with qemu_lab(Path(directory)) as created:
            yield created


@pytest.fixture(scope="module")
def pair(hosts: QemuLab) -> Iterator[RealInstance]:
    """A cluster with one VM on each host."""
    with real_instance("tqh") as outside:  # the lab has no route to Debian's archive
        built = outside.build_image(IMAGE)
        if built.returncode and "apt" in built.stderr:
            pytest.skip(f"no kernel for the image: {built.stderr}")
        assert built.returncode == 0, built.stderr
    with real_instance("tqh", hosts.namespaces.enter, WHERRY_FAULTS="1") as created:
        created.kept.places = False
        created.kept.mend = lambda: [hosts.restart_libvirtd(host) for host in ADDRESSES]
        created.kept.make(lambda: make(created))
        try:
            yield created
        finally:
            created("image", "remove", IMAGE)


def make(pair: RealInstance) -> None:
    """The fabric and the cluster."""
    fabric_up(pair, "qemu+tls://")
    text = f"kind: vm\nname: pair\nnodes: 2\ncpus: 1\nmemory: 192MiB\nimage: {IMAGE}\n"
    up = pair("up", pair.file("pair.yaml", text))
    assert up.returncode == 0, up.stderr


def fabric_up(pair: RealInstance, by: str) -> None:
    """Brings up the fabric with hosts reached by a libvirt transport."""
    rows = [
        f'  - {{name: {host}, site: q, cores: 2, memory: 1GiB, uri: "{by}{address}/system"}}\n'
        for host, address in ADDRESSES.items()
    ]
    pair.json("fabric", "up", pair.file("qemu.yaml", FABRIC + "".join(rows)))


def known(pair: RealInstance, hosts: QemuLab) -> dict[str, str]:
    """Node -> host by Wherry's records, which must agree with the hosts' libvirtds."""
    where = pair.hosts_of("pair")
    names = {f"{pair.instance.prefix}-{node}": host for node, host in where.items()}
    assert eventually(hosts.domains, names) == names
    return where


def silent(pair: RealInstance) -> list[str]:
    """Hosts that Wherry reports as down."""
    return [host["name"] for host in pair.json("host", "list")["hosts"] if host["down"]]


def states(pair: RealInstance) -> set[str]:
    """States of the nodes by Wherry's records."""
    return {node["state"] for node in pair.json("status", "pair")["nodes"]}


def other(host: str) -> str:
    return next(name for name in ADDRESSES if name != host)


def test_job_runs_while_a_vm_is_moved_there_and_back(pair: RealInstance, hosts: QemuLab) -> None:
    """The job itself checks every byte of its messages and memory."""
    before = known(pair, hosts)

    def move() -> None:
        for options in ((), ("--mode", "auto-converge", "--parallel", "2")):
            destination = other(known(pair, hosts)["pair-1"])
            record = pair.json("move", "pair-1", "--to", destination, *options)
            assert (record["phase"], record["error"]) == ("done", None)
            assert record["rounds"] and record["bytes"] > 0 and 0 < record["downtime"] <= record["total"]
            assert known(pair, hosts)["pair-1"] == destination
            usage = pair.json("node", "show", "pair-1")["usage"]
            assert usage["memory"] > 0 and usage["sent"] > 0 and usage["received"] > 0, usage

    pair.run_under_ring("pair", "mpich", move, ranks=2)
    assert known(pair, hosts) == before


def test_memory_is_sent_over_tls_only(pair: RealInstance, hosts: QemuLab) -> None:
    """With libvirtds reached by TLS, memory is also sent between QEMUs by TLS with certificates."""
    where = known(pair, hosts)
    with hosts.hidden_certificates():
        refused = pair("move", "pair-1", "--to", other(where["pair-1"]))
    assert refused.returncode == 1 and "/etc/pki/qemu" in refused.stderr, refused.stderr
    assert known(pair, hosts) == where
    with pair.ring("pair", "mpich", ranks=2, seconds=1) as ring:
        ring.result()


def test_no_secret_is_left_on_a_host(pair: RealInstance, hosts: QemuLab) -> None:
    """Hosts keep kernels, but no initial RAM disk, which contains the key."""
    for host in ADDRESSES:
        names = {name.removesuffix(".whole") for name in hosts.wherry_files(host)}
        assert len(names) == 1 and names.pop().startswith(f"{pair.instance.prefix}-kernel-")


def test_host_show_reports_the_facts_of_real_hosts(pair: RealInstance, hosts: QemuLab) -> None:
    kernels = {host["name"]: host["facts"]["kernel"] for host in pair.json("host", "list")["hosts"]}
    assert kernels.keys() == ADDRESSES.keys() and all(
        "QEMU" in text and "without KVM" in text for text in kernels.values()
    )
    message = {finding["name"]: finding for finding in pair.json("doctor")["findings"]}
    assert all(message[f"host {host}"]["health"] == "limited" for host in ADDRESSES)
    assert "pair-0 is at" in pair("logs", "--node", "pair-0").stdout


def test_real_host_is_drained(pair: RealInstance, hosts: QemuLab) -> None:
    host = known(pair, hosts)["pair-0"]
    drained = pair.json("host", "drain", host)["moves"]
    assert drained and all((record["phase"], record["error"]) == ("done", None) for record in drained)
    assert set(known(pair, hosts).values()) == {other(host)}
    pair.json("host", "restore", host)


@pytest.mark.parametrize("end", ["source", "destination"])
def test_move_survives_a_killed_libvirtd(pair: RealInstance, hosts: QemuLab, end: str) -> None:
    """libvirtd is restarted: node and job continue at the source, and nothing is left of the move."""
    where = known(pair, hosts)
    source, destination = where["pair-0"], other(where["pair-0"])
    killed = source if end == "source" else destination
    with pair.ring("pair", "openmpi", ranks=2, seconds=10, pause=10) as ring:
        moving = pair.start("move", "pair-0", "--to", destination, "--bandwidth", "16Mbit/s")
        assert eventually(lambda: hosts.receives(destination), True)
        hosts.kill_libvirtd(killed)
        _, err = moving.communicate(timeout=SECONDS)
        message = "is not rolled back yet" if end == "source" else f"runs on {source} as before"
        assert moving.returncode == 1 and message in err, err
        hosts.start_libvirtd(killed)
        assert eventually(lambda: silent(pair), []) == []
        assert eventually(lambda: states(pair), {"running"}) == {"running"}
        assert known(pair, hosts) == where
        ring.result()


def test_move_survives_a_killed_daemon(pair: RealInstance, hosts: QemuLab) -> None:
    """The daemon is killed after libvirt ended the source's copy; the next daemon finishes the move."""
    source = known(pair, hosts)["pair-1"]
    operation = pair.begin_move("pair-1", other(source), "transfer:kill")
    pair("op", "wait", operation)
    assert known(pair, hosts)["pair-1"] == other(source)
    with pair.ring("pair", "mpich", ranks=2, seconds=1) as ring:
        ring.result()


def test_domain_started_on_another_host_is_found(pair: RealInstance, hosts: QemuLab) -> None:
    """Bridges cache the port of a MAC address for minutes."""
    if known(pair, hosts)["pair-1"] == BEGAN["pair-1"]:
        pair.move("pair-1", other(BEGAN["pair-1"]))
    assert pair("down", "pair").returncode == 0
    up = pair("up", "pair.yaml")
    assert up.returncode == 0, up.stderr
    assert known(pair, hosts) == BEGAN


def test_hosts_are_reached_by_ssh(pair: RealInstance, hosts: QemuLab) -> None:
    """The same hosts with SSH as transport, also between each other."""
    if not sshd():
        pytest.skip("there is no sshd (scripts/setup-test)")
    hosts.start_sshd()
    assert pair("down", "pair").returncode == 0
    pair.json("fabric", "down")
    fabric_up(pair, "qemu+ssh://root@")
    up = pair("up", pair.file("pair.yaml", f"kind: vm\nname: pair\nnodes: 1\nmemory: 160MiB\nimage: {IMAGE}\n"))
    assert up.returncode == 0, up.stderr
    destination = other(known(pair, hosts)["pair-0"])
    pair.move("pair-0", destination)
    assert known(pair, hosts) == {"pair-0": destination}


def test_down_leaves_nothing_on_real_hosts(pair: RealInstance, hosts: QemuLab) -> None:
    """While a host does not answer, `down` fails and can be repeated later."""
    host = known(pair, hosts)["pair-0"]
    hosts.kill_libvirtd(host)
    failed = pair("down", "--all", "--yes")
    assert failed.returncode == 6 and f"{host} (qemu+" in failed.stderr, failed.stderr
    hosts.start_libvirtd(host)
    assert hosts.domains() != {}
    done = pair("down", "--all", "--yes")
    assert done.returncode == 0, done.stderr
    assert hosts.domains() == {} and not any(hosts.wherry_files(host) for host in ADDRESSES)
    assert not any(pair.all_resources()[kind] for kind in ("processes", "namespaces", "cgroups", "directories"))
