"""Studies on hosts that SSH reaches, made on one machine (`sshhosts`): native ranks beside nodes on the same hosts, the
record and report of the hosts, and an interrupted study, of which nothing stays there."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import SECONDS, RealInstance, eventually, real_instance
from sshhosts import ADDRESSES, FABRIC, SshLab, Tap, rows, temporary_lab

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.timeout(600),
]
STUDY = ("study", "run", "cloud-overhead", "--fabric", "machines.yaml", "--quick", "--reps", "1")
NATIVE = "grep -lsz ^WHERRY_NATIVE= /proc/[0-9]*/environ || true"
"""At a host: the processes of native runs."""


@pytest.fixture(scope="module")
def lab() -> Iterator[SshLab]:
    with temporary_lab() as created:
        yield created


@pytest.fixture(scope="module")
def world(lab: SshLab) -> Iterator[RealInstance]:
    with real_instance("tsoh", lab.namespaces.enter, below=lab.shared) as created:
        created.file("machines.yaml", FABRIC + rows("h1", "h2"))
        yield created


def native(lab: SshLab, host: str) -> list[str]:
    return lab.hosts[host].run("sh", "-c", NATIVE).split()


def left(lab: SshLab, world: RealInstance) -> list[str]:
    """All of the instance, and of native runs, at the hosts."""
    found = [name for host in ADDRESSES for name in (*lab.left(host, world.instance.name), *native(lab, host))]
    files = [name for host in ADDRESSES for name in lab.hosts[host].run("find", "/tmp", "-mindepth", "1").split()]
    return [*found, *files]


def test_native_ranks_and_nodes_are_at_the_same_hosts(lab: SshLab, world: RealInstance) -> None:
    """By both MPIs; the report names the hosts, and that they are one machine."""
    given = ("--reps", "1", "--set", "programs=is", "--set", "is.class=S", "--out", "made")
    document = world.json(*STUDY[:5], *given)
    assert (document["counted"], document["failed"], document["missing"]) == (5, 0, 0)
    made = world.directory / "made"
    with (made / "samples.csv").open() as file:
        assert {(row["mpi"], row["how"]) for row in csv.DictReader(file)} == {
            *((mpi, how) for mpi in ("openmpi", "mpich") for how in ("native", "nodes")),
            ("openmpi", "native-by-hand"),
        }
    commands = {file.parent.name: file.read_text() for file in (made / "runs").glob("*/command")}
    assert all((ADDRESSES["h2"] in command) == ("native" in name) for name, command in commands.items())
    record = json.loads((made / "study.json").read_text())
    assert [host["name"] for host in record["own_hosts"]["hosts"]] == ["h1", "h2"]
    facts = record["sessions"][0]["before"]
    assert os.uname().release in facts["host h1"] and facts["host h2"].endswith("on the same machine as h1")
    assert "h1 to h2" in facts["round-trip times"] and "MTU 1500 (eth0)" in facts["wire"]
    text = (made / "report.html").read_text()
    assert "(h1, h2), several of them on one machine" in text and "container nodes alone" in text
    assert left(lab, world) == [] and not world.instance.state.exists()

    refused = world("study", "run", "cloud-overhead", *given)
    assert refused.returncode == 4 and "--fabric on ssh://root@10.80.0.11" in refused.stderr, refused.stderr
    fewer = world(*STUDY, "--hosts", "3")
    assert fewer.returncode == 4 and "it needs 3 hosts, machines.yaml has 2" in fewer.stderr, fewer.stderr
    assert left(lab, world) == [] and not world.instance.state.exists()


def test_native_messages_cross_the_wire(lab: SshLab, world: RealInstance) -> None:
    given = ("--set", "nics=native", "--set", "tools=pingpong", "--set", "largest=64KiB", "--out", "wire")
    tap = Tap(lab.namespaces, ())
    try:
        document = world.json("study", "run", "nic-degradation", *STUDY[3:], *given)
    finally:
        tap.close()
    assert (document["counted"], document["failed"]) == (1, 0)
    with (world.directory / "wire/samples.csv").open() as file:
        largest = max(float(row["x"]) for row in csv.DictReader(file) if row["x"])
    assert largest == 65536 and tap.count > 130 * 2 * 65536, "130 exchanges of the largest size alone"
    assert left(lab, world) == []


@pytest.mark.parametrize("moment", ["native", "nodes"])
def test_nothing_stays_at_the_hosts_of_an_interrupted_study(lab: SshLab, world: RealInstance, moment: str) -> None:
    """Each run lasts for seconds; they take turns."""
    given = ("--set", "programs=queens", "--set", "queens.n=15", "--out", f"cut-{moment}")
    study = world.start(*STUDY[:-1], "9", *given)
    ranks = "grep -lsz ^OMPI_COMM_WORLD_RANK= /proc/[0-9]*/environ || true"

    def runs() -> bool:
        found = lab.hosts["h1"].run("sh", "-c", ranks).split()
        return bool(found) and bool(set(found) & set(native(lab, "h1"))) == (moment == "native")

    try:
        assert eventually(runs, True, SECONDS)
    finally:
        study.send_signal(signal.SIGINT)
        _, stderr = study.communicate(timeout=240)
    assert study.returncode == 130, stderr
    assert "failed, " in stderr and "--fabric machines.yaml --quick" in stderr, stderr
    assert left(lab, world) == [] and not world.instance.state.exists()


def test_a_host_that_cannot_take_part_refuses_the_study(lab: SshLab, world: RealInstance, tmp_path: Path) -> None:
    """Before anything is made at another one. The hosts have a /tmp of their own."""
    blind = world(*STUDY, "--out", str(tmp_path / "unseen here"))
    assert blind.returncode == 4 and "h1 and h2 do not see" in blind.stderr, blind.stderr
    assert not list(tmp_path.iterdir())
    lab.hosts["h2"].run("ip", "link", "set", "eth0", "down")
    try:
        refused = world(*STUDY, "--out", "silent")
    finally:
        lab.hosts["h2"].run("ip", "link", "set", "eth0", "up")
    assert refused.returncode == 7 and "host h2 cannot be asked" in refused.stderr, refused.stderr
    assert left(lab, world) == [] and not (world.directory / "silent").exists()
