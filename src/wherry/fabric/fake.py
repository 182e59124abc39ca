"""A fabric in memory, for plans while no fabric is up and for tests.

It checks the invariant that a port is plugged at one host at most: a second plug, which would be two machines with one
MAC, raises `Bug`. Failure on demand: `fail_at["port_plug"] = "the cut"` makes the next call of `port_plug` raise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from wherry.base.errors import Bug, Code, Failed, Refused
from wherry.fabric.host_counters import FrameCounter, HostCounters, HostUse
from wherry.fabric.protocol import HoldReport, LinkMeasure, LinkState, Repair
from wherry.model.network import ClusterNetwork, Port
from wherry.model.records import Host, HostFacts
from wherry.model.spec.fabric import FabricSpec, HostSpec, LinkSpec

T = TypeVar("T")
_FEATURES = frozenset({"sse2", "sse4_2", "avx", "avx2", "xsave"})


class FakeFabric:
    """Hosts, networks and ports as dictionaries. `calls` lists all calls by name; `on_call` runs before each."""

    driver = "fake"
    uncounted = ""
    leaves_machine = False

    def __init__(self, spec: FabricSpec) -> None:
        self.spec = spec
        self.fail_at: dict[str, Exception | str] = {}
        self.on_call: Callable[[str], None] | None = None
        self.calls: list[str] = []
        self.networks: set[int] = set()
        self.ports: dict[tuple[str, str], bool] = {}
        """(owner, host) -> plugged"""
        self.holds: dict[tuple[str, str], FakeHold] = {}
        self._up = False
        self._down: set[str] = set()
        self.lost: set[str] = set()
        self.counted: dict[str, HostCounters] = {}
        self.used: dict[str, HostUse] = {}
        """The figures that hosts report; all other hosts are without counters."""

    def entering(self, name: str) -> None:
        """Records a call; raises when the test asked for it."""
        self.calls.append(name)
        if self.on_call:
            self.on_call(name)
        error = self.fail_at.pop(name, None)
        if error is not None:
            raise error if isinstance(error, Exception) else Failed(Code.FAILED, f"{name} failed", error)

    def forget(self) -> None:
        """Ends all holds, as the death of the daemon does."""
        for hold in list(self.holds.values()):
            hold.die()

    def plugged(self, owner: str) -> list[str]:
        """Hosts at which the owner's port is plugged."""
        return [host for (name, host), plugged in list(self.ports.items()) if name == owner and plugged]

    def up(self) -> None:
        self.entering("up")
        self._up = True

    def down(self) -> None:
        self.entering("down")
        self.forget()
        self._up = False
        self.networks.clear()
        self.ports.clear()
        self._down.clear()

    def is_up(self) -> bool:
        return self._up

    def hosts(self) -> list[Host]:
        return [
            Host(
                name=host.name,
                site=host.site,
                cores=host.cores,
                memory=host.facts.memory or host.memory,
                speed=host.speed,
                facts=self.facts(host.name),
            )
            for host in self.spec.hosts
        ]

    def facts(self, host: str) -> HostFacts:
        spec = self._host(host)
        cores = math.ceil(spec.cores)
        first = (cores + 1) // 2
        return HostFacts(
            kernel="6.1.0-fake",
            architecture="x86_64",
            cpu_model="Fake CPU",
            cpu_features=_FEATURES - set(spec.facts.without_cpu_features),
            memory=spec.facts.memory or spec.memory,
            runtime="fake 1",
            criu="fake 1",
            cpus=tuple(range(cores)),
            numa={0: tuple(range(first)), 1: tuple(range(first, cores))},
        )

    def missing_files(self, host: str, paths: list[str]) -> list[str]:
        without = self._host(host).facts.without_files
        return [path for path in paths if path in without]

    def reachable(self, host: str) -> bool:
        return self._up and self._host(host).name not in self._down

    def set_lost(self, host: str, lost: bool) -> None:
        (self.lost.add if lost else self.lost.discard)(host)

    def set_down(self, host: str, down: bool) -> None:
        self._host(host)
        if down:
            self._down.add(host)
        else:
            self._down.discard(host)

    def links(self) -> list[LinkState]:
        return [LinkState(link=link, emulation="none") for link in self.spec.effective_links()]

    def set_link(self, link: LinkSpec) -> None:
        self.entering("set_link")
        self.spec = self.spec.with_link(link)

    def measure_link(self, link: LinkSpec, bandwidth: bool) -> LinkMeasure:
        there, back = link.directions()
        return LinkMeasure(
            latency=there.latency or 0,
            latency_back=back.latency or 0,
            there=there.bandwidth if bandwidth else None,
            back=back.bandwidth if bandwidth else None,
        )

    def relink(self) -> None:
        self.entering("relink")

    def repair(self) -> list[Repair]:
        return []

    def host_netns(self, host: str) -> str:
        return f"/fake/netns/{self._host(host).name}"

    def host_address(self, host: str) -> str:
        index = [h.name for h in self.spec.hosts].index(self._host(host).name)
        return f"{self.spec.underlay.rsplit('.', 2)[0]}.0.{index + 1}"

    def cgroup(self, host: str) -> str:
        return f"fake/{self._host(host).name}"

    def network_up(self, network: ClusterNetwork) -> None:
        self.entering("network_up")
        self.networks.add(network.number)

    def network_down(self, network: ClusterNetwork) -> None:
        self.entering("network_down")
        self.networks.discard(network.number)

    def update_paths(self) -> None:
        self.entering("update_paths")

    def counters(self, host: str, nodes: Sequence[str] = ()) -> HostCounters:
        return self._known(self.counted, host)

    def use(self, host: str, nodes: Sequence[str] = ()) -> HostUse:
        return self._known(self.used, host)

    def frame_counter(self, host: str) -> FrameCounter:
        raise Refused(Code.UNSUPPORTED, f"host {self._host(host).name} counts no frames", "it exists in memory only")

    def _known(self, figures: Mapping[str, T], host: str) -> T:
        if host not in figures:
            raise Refused(Code.UNSUPPORTED, f"host {self._host(host).name} counts nothing", "it exists in memory only")
        return figures[host]

    def port_up(self, port: Port) -> str:
        self.entering("port_up")
        self._host(port.host)
        self.ports.setdefault(_key(port), False)
        return self.port_netns(port)

    def port_netns(self, port: Port) -> str:
        return f"/fake/netns/{port.host}/{port.owner}"

    def port_device(self, port: Port) -> str:
        return f"p{port.network.number}.{port.index}"

    def port_plug(self, port: Port) -> None:
        self.entering("port_plug")
        self.plug(port)

    def plug(self, port: Port) -> None:
        """Plugs without being recorded as a call, for a hold's release."""
        if _key(port) not in self.ports or port.network.number not in self.networks:
            raise Failed(Code.FAILED, f"no port of {port.owner} at {port.host} to plug", "it or its network is missing")
        elsewhere = [host for host in self.plugged(port.owner) if host != port.host]
        if elsewhere:
            raise Bug(f"{port.owner} is plugged at {elsewhere[0]} and at {port.host}", "one address at two hosts")
        self.ports[_key(port)] = True

    def port_unplug(self, port: Port) -> None:
        self.entering("port_unplug")
        if _key(port) in self.ports:
            self.ports[_key(port)] = False

    def port_down(self, port: Port) -> None:
        self.entering("port_down")
        self.ports.pop(_key(port), None)

    def hold(self, port: Port) -> FakeHold:
        self.entering("hold")
        return self.holds.setdefault(_key(port), FakeHold(self, port))

    def _host(self, name: str) -> HostSpec:
        for host in self.spec.hosts:
            if host.name == name:
                return host
        raise Refused(Code.NOT_FOUND, f"no host is named {name}", "", "wherry status")


class FakeHold:
    """Measures the time that it holds; a test sets the number of `frames`, and of the `lost` ones."""

    def __init__(self, fabric: FakeFabric, port: Port) -> None:
        self.frames = self.lost = 0
        self.since: float | None = None
        self._fabric = fabric
        self._port = port

    def divert(self) -> None:
        self._fabric.entering("hold.divert")
        self.since = time.monotonic()

    def release(self) -> HoldReport:
        self._fabric.entering("hold.release")
        self._fabric.plug(self._port)
        held = time.monotonic() - self.since if self.since is not None else 0.0
        self.die()
        return HoldReport(frames=self.frames, lost=self.lost, held=held)

    def first_sent(self, timeout: float) -> float | None:
        return time.monotonic()

    def problem(self) -> str:
        return "" if _key(self._port) in self._fabric.holds else f"the hold for {self._port.owner} ended"

    def give_back(self, source: Port) -> HoldReport:
        self._fabric.entering("hold.give_back")
        self.since = None
        self._fabric.plug(source)
        return HoldReport(frames=self.frames, lost=self.lost)

    def drop(self) -> None:
        self._fabric.entering("hold.drop")
        self.die()

    def die(self) -> None:
        """Ends without a report, as a killed process does."""
        self.since = None
        self._fabric.holds.pop(_key(self._port), None)


def _key(port: Port) -> tuple[str, str]:
    return port.owner, port.host
