"""wherry-ns gives programs other clocks, which are read as a node's are."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

import waiting
from wherry.base.paths import native_program
from wherry.node.container import clocks
from wherry.node.container.host import HOSTS_OWN, ClocksAhead

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are root's"),
    pytest.mark.skipif(not clocks.supported(), reason="this kernel has no time namespaces"),
]
_DAY = 86400 * 10**9


def run(*words: str) -> subprocess.Popen[str]:
    """A program that prints its uptime, and waits."""
    argv = [str(native_program("wherry-ns")), *words, "--", "sh", "-c", "cut -d' ' -f1 /proc/uptime; read line"]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def uptime(process: subprocess.Popen[str]) -> float:
    assert process.stdout
    return float(process.stdout.readline())


@pytest.mark.parametrize("ahead", [ClocksAhead(_DAY + 1, 2 * _DAY - 1), ClocksAhead(-1_500_000_001, 3), HOSTS_OWN])
def test_a_program_has_clocks_that_are_so_far_ahead(ahead: ClocksAhead) -> None:
    with run(*clocks.made(ahead)) as first:
        shown = uptime(first) - time.clock_gettime(time.CLOCK_BOOTTIME)
        assert abs(shown - ahead.boottime / 1e9) < 5
        assert clocks.of_process(first.pid) == clocks.of_host(first.pid).ahead == ahead
        with run(*clocks.entered(first.pid)) as second:
            assert abs(uptime(second) - time.clock_gettime(time.CLOCK_BOOTTIME) - ahead.boottime / 1e9) < 5
            assert clocks.of_process(second.pid) == ahead
            second.communicate("\n")
        first.communicate("\n")


@pytest.mark.parametrize("words", ["", "5", "5:", "x:5", "5:6x", "-99999999999999999:0"])
def test_wrong_clocks_start_nothing(words: str) -> None:
    argv = [str(native_program("wherry-ns")), "--clocks", words, "--", "true"]
    assert subprocess.run(argv, capture_output=True, timeout=waiting.bound()).returncode == 125
