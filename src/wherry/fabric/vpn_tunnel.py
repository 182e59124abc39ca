"""Base of all VPNs between two sites: a gateway at each, addresses on the link, keys in a directory of its own.

Invariants: `up` makes missing objects and keeps existing ones, so it repairs a tunnel of which a part has died; only
the owner can read the directory, and keys are removed with the tunnel.
"""

from __future__ import annotations

import functools
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from wherry.base.errors import Code, Failed
from wherry.fabric import netns_links
from wherry.fabric.netns_links import NetnsLinks
from wherry.fabric.vpn_gateway import Gateway

TIMEOUT = 30.0
"""Seconds within which a tunnel must be up; the handshake takes a few round trips."""


class Tunnel(ABC):
    """The two gateways of one link, the `index`-th of the fabric. `ends` are the sites' namespaces and wires there."""

    def __init__(self, directory: Path, name: str, ends: list[tuple[str, str]], index: int, bridge: str) -> None:
        self._directory = directory
        self._name = name
        self._ends = ends
        self._index = index
        self._bridge = bridge
        self._outer = [f"100.64.{index}.{last}" for last in (1, 2)]
        self._gateways = [self._gateway(side, netns) for side, (netns, _) in enumerate(ends)]

    def up(self) -> None:
        """Starts the gateways that do not run. Frames pass after the handshake (see `wait`)."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for address, (netns, wire) in zip(self._outer, self._ends, strict=True):
            netns_links.inside(netns, functools.partial(NetnsLinks.address, name=wire, address=f"{address}/30"))
        ran = [self._runs(side) for side in (0, 1)]
        try:
            self._make()
        except Exception:
            for side in (0, 1):
                if not ran[side]:  # half configured: ended, so that the next `alive` is False
                    self._end(side)
            raise

    def wait(self) -> None:
        """Waits for the handshake. Failed, with the gateways' last output, when one ends or the time is up."""
        self._until(lambda: all(self._connected(side) for side in (0, 1)), "connect")

    def alive(self) -> bool:
        """True when both gateways run."""
        return all([self._runs(side) for side in (0, 1)])  # a list, so that each reaps its dead child

    def down(self) -> None:
        """Ends both gateways and removes their keys, if there are any."""
        for side in (0, 1):
            self._end(side)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _runs(self, side: int) -> bool:
        return self._gateways[side].pid() is not None

    def _end(self, side: int) -> None:
        self._gateways[side].end()

    @abstractmethod
    def _gateway(self, side: int, netns: str) -> Gateway:
        """The gateway of a side."""

    @abstractmethod
    def _make(self) -> None:
        """Makes missing keys, gateways and interfaces, and attaches the tunnel's ends to the bridges."""

    @abstractmethod
    def _connected(self, side: int) -> bool:
        """True when this side has completed the handshake."""

    def _until(self, done: Callable[[], bool], verb: str, sides: Sequence[int] = (0, 1)) -> None:
        """Waits until `done`. Failed when the gateway of one of `sides` ends, or the time is up."""
        deadline = time.monotonic() + TIMEOUT
        while not done():
            if time.monotonic() > deadline or not all([self._runs(side) for side in sides]):
                what = f"the gateways of the link {self._name} did not {verb}"
                raise Failed(Code.FAILED, what, self._last_output(), "wherry site link")
            time.sleep(0.02)

    def _last_output(self) -> str:
        return "; ".join(line for gateway in self._gateways for line in gateway.output().splitlines()[-3:])
