"""Nodes that boot a cloud's image from a disk: cloud-init starts the agent, a job runs, and one is moved meanwhile.

The image is made by `make test-cloud`, which takes minutes, and so does the boot of a whole system without KVM.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import World, world

IMAGE = Path(os.environ.get("WHERRY_CLOUD_IMAGE") or Path(__file__).resolve().parents[2] / "build" / "cloud.qcow2")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(not IMAGE.exists(), reason=f"there is no {IMAGE} (make test-cloud)"),
    pytest.mark.timeout(3000),
]

_BOOT = 1800
"""Seconds for the boot of a whole system."""


@pytest.fixture(scope="module")
def cloud() -> Iterator[World]:
    """A container and a machine with a disk."""
    with world("tcld") as made:
        group = f"{{kind: vm, image: {IMAGE}, memory: 512MiB}}"
        text = f"name: cloud\nhosts: [a1, b1]\nnodes:\n  - {{memory: 128MiB}}\n  - {group}\n"
        up = made.start("up", made.file("cloud.yaml", text))
        said = up.communicate(timeout=_BOOT)
        assert up.returncode == 0, said
        yield made


def test_vm_with_a_disk_is_moved_under_a_job(cloud: World) -> None:
    base = IMAGE.stat()
    disk = cloud.instance.state / "disks" / "cloud-1" / "disk.qcow2"

    def move() -> None:
        for host in ("b2", "a1"):
            record = cloud.move("cloud-1", host)
            assert (record["phase"], record["error"]) == ("done", None)
            assert cloud.hosts_of("cloud")["cloud-1"] == host
        assert disk.exists()

    cloud.under_a_ring("cloud", "mpich", move, ranks=2)
    done = cloud(
        "run", "cloud", "-n", "2", "--mpi", "mpich", "--", "/bin/sh", "-c", "echo $(hostname) $(ls /var/lib/cloud)"
    )
    assert "cloud-0" in done.stdout and "cloud-1 data" in done.stdout, (done.stdout, done.stderr)
    assert (IMAGE.stat().st_mtime, IMAGE.stat().st_size) == (base.st_mtime, base.st_size)  # it is only read


def test_disk_is_removed_with_its_node(cloud: World) -> None:
    assert (cloud.instance.state / "disks" / "cloud-1").exists()
    cloud.json("down", "cloud")
    assert not (cloud.instance.state / "disks" / "cloud-1").exists()
