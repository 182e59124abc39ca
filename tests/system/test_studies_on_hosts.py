"""Studies on hosts that SSH reaches, made on one machine (`sshhosts`): native ranks there beside nodes there, the record
and report of the hosts, and an interrupted study, of which nothing stays at the hosts."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import RealInstance, eventually, real_instance
from sshhosts import ADDRESSES, FABRIC, SshLab, rows, temporary_lab

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.timeout(600),
]
SMALL = ("--quick", "--reps", "1", "--set", "programs=queens,is", "--set", "queens.n=8", "--set", "is.class=S")
STUDY = ("study", "run", "cloud-overhead", "--fabric", "machines.yaml", *SMALL)


@pytest.fixture(scope="module")
def lab() -> Iterator[SshLab]:
    with temporary_lab() as created:
        yield created


@pytest.fixture(scope="module")
def world(lab: SshLab) -> Iterator[RealInstance]:
    with real_instance("tsoh", lab.namespaces.enter, below=lab.shared) as created:
        created.file("machines.yaml", FABRIC + rows("h1", "h2"))
        yield created


def left(lab: SshLab, world: RealInstance) -> list[str]:
    """All of the instance, and of native runs, at the hosts."""
    native = "find /tmp -mindepth 1; pgrep -fa 'orted|hydra|npb-|wherry-queens' || true"
    return [
        line
        for host in ADDRESSES
        for line in (*lab.left(host, world.instance.name), *lab.hosts[host].run("sh", "-c", native).splitlines())
        if "pgrep" not in line
    ]


def test_native_ranks_and_nodes_are_on_the_same_hosts(lab: SshLab, world: RealInstance) -> None:
    document = world.json(*STUDY, "--out", "made")
    assert (document["counted"], document["failed"], document["missing"]) == (4, 0, 0)
