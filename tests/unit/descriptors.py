"""Processes with many open files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest


@pytest.fixture
def thousand_descriptors() -> Iterator[None]:
    """A process in which the next descriptor is above 1024, the limit of select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this machine allows no more descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
