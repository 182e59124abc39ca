"""VM nodes that boot a cloud image from a disk: cloud-init starts the agent, a job runs, and a node is moved. `make
test-cloud` builds the image, which takes minutes, as does booting a full system without KVM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import RealInstance, real_instance

IMAGE = Path(os.environ.get("WHERRY_CLOUD_IMAGE") or Path(__file__).resolve().parents[2] / "build" / "cloud.qcow2")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(not IMAGE.exists(), reason=f"there is no {IMAGE} (make test-cloud)"),
    pytest.mark.timeout(3000),
]

_BOOT = 1800
"""Time limit for booting a full system."""


@pytest.fixture(scope="module")
def cloud() -> Iterator[RealInstance]:
    """A cluster of a container and a VM with a disk."""
    with real_instance("tcld") as created:
        group = f"{{kind: vm, image: {IMAGE}, memory: 512MiB}}"
        text = f"name: cloud\nhosts: [a1, b1]\nnodes:\n  - {{memory: 128MiB}}\n  - {group}\n"
        up = created.start("up", created.file("cloud.yaml", text))
        output = up.communicate(timeout=_BOOT)
        assert up.returncode == 0, output
        yield created


def test_vm_with_a_disk_is_moved_under_a_job(cloud: RealInstance) -> None:
    base = IMAGE.stat()
    disk = cloud.instance.state / "disks" / "cloud-1" / "disk.qcow2"

    def move() -> None:
        for host in ("b2", "a1"):
            record = cloud.move("cloud-1", host)
            assert (record["phase"], record["error"]) == ("done", None)
            assert cloud.hosts_of("cloud")["cloud-1"] == host
        assert disk.exists()

    cloud.run_under_ring("cloud", "mpich", move, ranks=2)
    done = cloud(
        "run", "cloud", "-n", "2", "--mpi", "mpich", "--", "/bin/sh", "-c", "echo $(hostname) $(ls /var/lib/cloud)"
    )
    assert "cloud-0" in done.stdout and "cloud-1 data" in done.stdout, (done.stdout, done.stderr)
    assert (IMAGE.stat().st_mtime, IMAGE.stat().st_size) == (base.st_mtime, base.st_size)  # opened read-only


def test_disk_is_removed_with_its_node(cloud: RealInstance) -> None:
    assert (cloud.instance.state / "disks" / "cloud-1").exists()
    cloud.json("down", "cloud")
    assert not (cloud.instance.state / "disks" / "cloud-1").exists()
