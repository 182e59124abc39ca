"""A cluster with a job ends by itself when its lease ends, also when its daemon was killed before."""

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
