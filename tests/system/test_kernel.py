"""Features that not every kernel has; skipped if missing. `make test-guest` runs all on Debian's kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from realworld import SECONDS, RealInstance, real_instance

from wherry.fabric import netem, wireguard
from wherry.node.container import tracking

_WHOLE = "WHERRY_WHOLE_KERNEL" in os.environ
"""Set by `make test-guest`: a missing feature then fails the test instead of skipping it."""
_OBSTACLE = tracking.chosen().obstacle or tracking.receiver_obstacle()
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")


@pytest.fixture(scope="module")
def two() -> Iterator[RealInstance]:
    """A cluster with one node at each of two sites."""
    with real_instance("tkrn") as created:
        created.kept.make(lambda: created.up("two", 2, more="placement: {spread: site}\n"))
        yield created


def move_there_and_back(created: RealInstance) -> list[dict[str, object]]:
    """Moves two-0 to the other site and back; returns both records."""
    source = created.hosts_of("two")["two-0"]
    other = {"a": "b", "b": "a"}[source[0]] + "2"
    return [created.move("two-0", host) for host in (other, source)]


@pytest.mark.skipif(not _WHOLE and bool(_OBSTACLE), reason=f"the pager does not work: {_OBSTACLE}")
def test_memory_is_sent_in_rounds_while_the_job_runs(two: RealInstance) -> None:
    records: list[dict[str, object]] = []
    two.run_under_ring("two", "openmpi", lambda: records.extend(move_there_and_back(two)), ranks=2, memory=16)
    assert all(record["rounds"] for record in records), records


@pytest.mark.skipif(not _WHOLE and not netem.available(), reason="the kernel has no netem")
def test_link_with_only_a_latency_uses_netem(two: RealInstance) -> None:
    two.json("site", "link", "set", "a", "b", "--latency", "5ms")
    (link,) = two.json("site", "link")["links"]
    assert link["measured"]["latency"] > 0.0045
    assert not any("wherry-link" in words for words in two.processes().values())
    two.run_under_ring("two", "mpich", lambda: move_there_and_back(two), ranks=2)


@pytest.mark.skipif(not _WHOLE and not wireguard.kernel(), reason="the kernel has no WireGuard")
@pytest.mark.skipif(not _WHOLE and not shutil.which("wg"), reason="wireguard-tools is not installed")
def test_wireguard_overlay_uses_the_kernel_module(two: RealInstance) -> None:
    two.json("site", "link", "set", "a", "b", "--overlay", "wireguard")
    words = ["ip", "-n", f"{two.instance.prefix}-site-a", "-o", "link", "show", "type", "wireguard"]
    assert subprocess.run(words, capture_output=True, timeout=SECONDS, check=True).stdout
    assert not any(wireguard.PROGRAM in words for words in two.processes().values())
    two.run_under_ring("two", "openmpi", lambda: move_there_and_back(two), ranks=2)
