"""A cluster with a job ends by itself when its lease ends, and a cluster that waits is made when there is room,
also when the daemon was killed before."""

from __future__ import annotations

import os

import pytest
from realworld import SECONDS, RealInstance, eventually

from wherry.base.errors import Code

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")


@pytest.mark.smoke
def test_a_cluster_ends_with_its_lease(four: RealInstance) -> None:
    file = four.cluster_file("brief", 2)
    made = four("up", file, "--lease", "8h")
    assert made.returncode == 0 and "wherry lease extend brief --by 4h" in made.stdout, made.stderr
    client = four.start("run", "brief", "-n", "2", "--", "/bin/sh", "-c", "echo begun; exec sleep 600")
    assert client.stdout and client.stdout.readline() == "begun\n"
    assert four("lease", "set", "brief", "6s").returncode == 0
    four.kill_daemon()  # the next one, which the waiting client starts, reads the row
    _, said = client.communicate(timeout=SECONDS)
    assert client.returncode == Code.TAKEN_DOWN.exit_code and "as its lease ended at" in said, said
    eventually(lambda: [one["name"] for one in four.json("status")["clusters"]].count("brief"), 0)
    kinds = [event["kind"] for event in four.json("event", "list")["events"] if event["target"] == "brief"]
    assert kinds.index("cluster.lease-warning") < kinds.index("cluster.lease-ended") < kinds.index("cluster.down")


@pytest.mark.smoke
def test_a_cluster_that_waits_is_made_when_there_is_room(four: RealInstance) -> None:
    free = next(host["free_cores"] for host in four.json("host", "capacity")["hosts"] if host["host"] == "a1")
    for name in ("full", "later"):
        four.cluster_file(name, 1, more="hosts: [a1]\n", cpus=free)
    assert four("up", "full.yaml").returncode == 0
    client = four.start("up", "later.yaml", "--wait")
    assert client.stderr and "position 1 of 1" in client.stderr.readline()
    four.kill_daemon()  # the next one, which the waiting client starts, has it wait on
    eventually(lambda: "later" in four("queue", "list").stdout, True, SECONDS)
    assert four("down", "full").returncode == 0
    made, said = client.communicate(timeout=SECONDS)
    assert client.returncode == 0 and "later is up: 1 node" in made, said
    assert four("down", "later").returncode == 0
