"""netem is used for links with only a latency, if the kernel has it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from names import own_name
from wherry.fabric import named_netns, netem
from wherry.model.spec.fabric import LinkSpec

NAME = f"wherry-{own_name('tnet')}-x"


@pytest.mark.parametrize(
    ("declared", "fits"),
    [
        ({}, False),
        ({"latency": "5ms"}, True),
        ({"latency": "5ms", "jitter": "1ms"}, False),
        ({"latency": "5ms", "bandwidth": "1Gbit/s"}, False),
        ({"latency": "5ms", "reverse": {"loss": "1%"}}, False),
        ({"reverse": {"latency": "5ms"}}, True),
    ],
)
def test_netem_is_used_for_links_with_only_a_latency(
    monkeypatch: pytest.MonkeyPatch, declared: dict[str, Any], fits: bool
) -> None:
    monkeypatch.setattr(netem, "available", lambda: True)
    assert netem.fits(LinkSpec.model_validate({"between": ["a", "b"], **declared})) is fits


def test_kernel_without_netem_uses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netem, "available", lambda: False)
    assert not netem.fits(LinkSpec.model_validate({"between": ["a", "b"], "latency": "5ms"}))


@pytest.fixture
def wire() -> Iterator[tuple[str, str]]:
    if os.geteuid() != 0 or not netem.available():
        pytest.skip("this kernel has no netem, or this is not root")
    named_netns.create(NAME)
    yield named_netns.path(NAME), "lo"
    named_netns.remove(NAME)


def test_netem_latency_is_set_changed_and_removed(wire: tuple[str, str]) -> None:
    def ping() -> float:
        output = subprocess.run(["ip", "netns", "exec", NAME, "ping", "-c2", "-q", "127.0.0.1"], capture_output=True)
        return float(output.stdout.decode().rpartition("= ")[2].split("/")[0])

    subprocess.run(["ip", "-n", NAME, "link", "set", "lo", "up"], check=True)
    netem.clear(wire)
    for seconds in (0.02, 0.005):
        netem.set_latency(wire, seconds)
        least = min(ping() for _ in range(3)) / 1e3
        for _ in range(30):  # on a busy machine
            least = least if least < 2 * seconds + 0.03 else min(least, ping() / 1e3)
        assert 2 * seconds <= least < 2 * seconds + 0.03
    commands = netem.traffic(wire)
    assert commands and commands.frames >= 4
    netem.clear(wire)
    assert netem.traffic(wire) is None
