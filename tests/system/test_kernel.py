"""What only some kernels have, skipped where this one lacks it; `make test-guest` shows all on Debian's own kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from realworld import SECONDS, World, world

from wherry.fabric import netem, wireguard
from wherry.node.container.criu.soft_dirty import tracked

_WHOLE = "WHERRY_WHOLE_KERNEL" in os.environ
"""`make test-guest` says so: there nothing may be missing, and a test that finds something missing fails."""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")


@pytest.fixture(scope="module")
def two() -> Iterator[World]:
    """A node at each of two sites."""
    with world("tkrn") as made:
        made.up("two", 2, more="placement: {spread: site}\n")
        yield made


def to_and_fro(made: World) -> list[dict[str, object]]:
    """Records of two-0's move to the other site and back."""
    source = made.hosts_of("two")["two-0"]
    other = {"a": "b", "b": "a"}[source[0]] + "2"
    return [made.move("two-0", host) for host in (other, source)]


@pytest.mark.skipif(not _WHOLE and not tracked(), reason="the kernel tells not what was written (soft-dirty)")
def test_memory_is_sent_in_rounds_while_the_job_runs(two: World) -> None:
    records: list[dict[str, object]] = []
    two.under_a_ring("two", "openmpi", lambda: records.extend(to_and_fro(two)), ranks=2, memory=16)
    assert all(record["rounds"] for record in records), records


@pytest.mark.skipif(not _WHOLE and not netem.available(), reason="the kernel has no netem")
def test_link_with_only_a_latency_uses_netem(two: World) -> None:
    two.json("site", "link", "set", "a", "b", "--latency", "5ms")
    (found,) = two.json("site", "link")["links"]
    assert found["measured"]["latency"] > 0.0045
    assert not any("wherry-link" in words for words in two.processes().values())
    two.under_a_ring("two", "mpich", lambda: to_and_fro(two), ranks=2)
    two.json("site", "link", "set", "a", "b", "--latency", "0ms")


@pytest.mark.skipif(not _WHOLE and not wireguard.kernel(), reason="the kernel has no WireGuard")
@pytest.mark.skipif(not _WHOLE and not shutil.which("wg"), reason="wireguard-tools is not installed")
def test_wireguard_overlay_uses_the_kernel_module(two: World) -> None:
    two.json("site", "link", "set", "a", "b", "--overlay", "wireguard")
    words = ["ip", "-n", f"{two.instance.prefix}-site-a", "-o", "link", "show", "type", "wireguard"]
    assert subprocess.run(words, capture_output=True, timeout=SECONDS, check=True).stdout
    assert not any(wireguard.PROGRAM in words for words in two.processes().values())
    two.under_a_ring("two", "openmpi", lambda: to_and_fro(two), ranks=2)
    two.json("site", "link", "set", "a", "b", "--overlay", "none")
