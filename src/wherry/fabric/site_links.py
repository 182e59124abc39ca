"""The links between sites of the netns fabric: each a veth pair, or an emulator process when it is shaped.

    nothing declared:   bridge lan -- s1 ======== pair ======== s0 -- bridge lan
    latency alone:      the same with netem at both ends, where the kernel has it
    anything else:      bridge lan -- s1 (TAP) - wherry-link - (TAP) s0 -- bridge lan
    with an overlay:    bridge lan -- tunnel's end - gateway - s1 == either == s0 - gateway - tunnel's end -- bridge lan

Invariants: an end is named by the index of the site at the other end, so a restarted daemon finds it by name; a link is
made again only when its kind differs from the declared one, and a change of figures alone loses no frame.
"""

from __future__ import annotations

import functools
import shutil
import threading
import time
from pathlib import Path
from typing import NamedTuple

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.fabric import named_netns, netem, netns_links, vpn_catalog
from wherry.fabric.link_emulator import LinkEmulator
from wherry.fabric.netns_links import NetnsLinks
from wherry.fabric.protocol import LinkState, Repair, Traffic
from wherry.fabric.vpn_tunnel import Tunnel
from wherry.model.spec.fabric import FabricSpec, LinkSpec

BRIDGE = "lan"
"""The bridge of every site."""


_FIRST_PAUSE, _MAX_PAUSE = 2.0, 60.0
"""Backoff of a failed repair: the first pause in seconds, doubled after each failure, and the longest."""


class _Backoff(NamedTuple):
    """A failed repair: its reason, the current pause, and when (time.monotonic) it is retried."""

    reason: str
    pause: float
    until: float


def check(spec: FabricSpec) -> None:
    """Refuses links that this machine cannot make. Changes nothing."""
    for index, link in enumerate(spec.effective_links()):
        vpn_catalog.check(link)
        if link.overlay != "none" and index > 255:
            why = "a VPN has the addresses 100.64.N.1 and 100.64.N.2, where N is the position of its link"
            raise Refused(
                Code.NO_CAPACITY, f"the link {link.name} cannot have a VPN", why, "declare links with a VPN first"
            )


class SiteLinks:
    """The links of one fabric."""

    def __init__(self, instance: Instance) -> None:
        self._directory = directory(instance)
        self._prefix = instance.prefix
        self.lock = threading.RLock()
        """Held while links are changed or repaired. Apart from the fabric's lock, as ports are plugged meanwhile."""
        self._emulators: dict[str, LinkEmulator] = {}
        self._tunnels: dict[tuple[str, str], Tunnel] = {}
        self._backoffs: dict[str, _Backoff] = {}
        """By link, the last repair, if it failed."""

    def up(self, spec: FabricSpec, link: LinkSpec) -> None:
        """Makes a link, or changes the existing one into it, and waits until it carries frames."""
        with self.lock:
            self._make(spec, link)
            self._backoffs.pop(link.name, None)
            if link.overlay != "none":
                self._tunnel(spec, link, link.overlay).wait()

    def remake(self, spec: FabricSpec) -> None:
        """Makes or changes every link, without waiting for overlays. Failed, at the end, if one could not be made."""
        reasons = []
        with self.lock:
            for link in spec.effective_links():
                try:
                    self._make(spec, link)
                except Exception as error:  # the other links are made all the same
                    reasons.append(f"{link.name}: {error}")
        if reasons:
            raise Failed(Code.FAILED, "not every link could be made", "; ".join(reasons), "wherry site link")

    def repair(self, spec: FabricSpec) -> list[Repair]:
        """Restarts dead processes. Skips a link whose sites do not exist, and one in backoff."""
        found = []
        with self.lock:
            for link in spec.effective_links():
                failed = self._backoffs.get(link.name)
                if failed is not None and time.monotonic() < failed.until:
                    continue
                try:
                    text = self._repair_one(spec, link)
                except Exception as error:  # the other links are repaired all the same
                    pause = min(2 * failed.pause, _MAX_PAUSE) if failed else _FIRST_PAUSE
                    self._backoffs[link.name] = _Backoff(str(error), pause, time.monotonic() + pause)
                    if failed is None or failed.reason != str(error):
                        text = f"the link {link.name} could not be repaired (retried with growing pauses): {error}"
                        found.append(Repair(text=text, failed=True))
                    continue
                self._backoffs.pop(link.name, None)
                if text:
                    found.append(Repair(text=text))
        return found

    def _repair_one(self, spec: FabricSpec, link: LinkSpec) -> str:
        """Restarts the dead processes of a link; names them, or returns an empty text."""
        if not all(named_netns.exists(Path(netns).name) for netns, _ in self._ends(spec, link)):
            return ""
        dead = []
        if _emulation(link) == "wherry-link" and not self._emulator(link).alive():
            dead.append("emulator")
        if link.overlay != "none" and not self._tunnel(spec, link, link.overlay).alive():
            dead.append(f"{link.overlay} gateway")
        if not dead:
            return ""
        self._make(spec, link)  # without waiting for the overlay, whose handshake a lossy link may delay
        return f"the {' and the '.join(dead)} of the link {link.name} had died and was restarted"

    def state(self, spec: FabricSpec, link: LinkSpec) -> LinkState:
        """The link's processes and counters."""
        emulation, overlay = _emulation(link), None
        if link.overlay != "none":
            overlay = "up" if self._tunnel(spec, link, link.overlay).alive() else "dead"
        if emulation == "none":
            return LinkState(link=link, emulation=emulation, overlay=overlay)
        if emulation == "netem":
            one, other = (netem.traffic(end) for end in self._ends(spec, link))
            return LinkState(link=link, emulation=emulation, overlay=overlay, there=one, back=other)
        found = self._emulator(link).counters()
        if found is None:
            return LinkState(link=link, emulation="dead", overlay=overlay)
        there, back = (Traffic(**found[way]) for way in ("there", "back"))
        cpu = found["cpu_us"] / 1e6
        return LinkState(link=link, emulation=emulation, overlay=overlay, there=there, back=back, cpu=cpu)

    def forget(self) -> None:
        """Forgets the processes, which the removal of their namespaces ends."""
        with self.lock:
            self._emulators.clear()
            self._tunnels.clear()
            self._backoffs.clear()

    def _make(self, spec: FabricSpec, link: LinkSpec) -> None:
        ends, emulator = self._ends(spec, link), self._emulator(link)
        for kind in vpn_catalog.KINDS:
            if kind != link.overlay:
                self._tunnel(spec, link, kind).down()
        emulation = _emulation(link)
        if emulation != "wherry-link":
            emulator.end()
            self._clear(ends, unless="veth")
            self._pair(ends)
            for end, way in zip(ends, link.directions(), strict=True):
                if emulation == "netem":
                    netem.set_latency(end, way.latency or 0)
                elif netem.available():
                    netem.clear(end)
        elif not (emulator.alive() and emulator.set(link.directions())):
            self._clear(ends)
            emulator.start(ends, netns_links.WIRE_MTU, link.directions())
        bridge = BRIDGE if link.overlay == "none" else None
        for netns, wire in ends:
            netns_links.inside(
                netns, functools.partial(NetnsLinks.attach, name=wire, bridge=bridge, mtu=netns_links.WIRE_MTU)
            )
        for netns, wire in ends:
            netns_links.inside(netns, functools.partial(NetnsLinks.wait, name=wire))
        if link.overlay != "none":
            self._tunnel(spec, link, link.overlay).up()

    def _ends(self, spec: FabricSpec, link: LinkSpec) -> list[tuple[str, str]]:
        """For both sites in the order of the link: path of the namespace, and name of the wire's end there."""
        order = [site.name for site in spec.sites]
        one, other = link.between
        return [(self._site(site), f"s{order.index(far)}") for site, far in ((one, other), (other, one))]

    def _site(self, site: str) -> str:
        return named_netns.path(f"{self._prefix}-site-{site}")

    def _clear(self, ends: list[tuple[str, str]], unless: str | None = None) -> None:
        for netns, wire in ends:
            netns_links.inside(netns, functools.partial(NetnsLinks.remove, name=wire, unless=unless))

    def _pair(self, ends: list[tuple[str, str]]) -> None:
        (here, wire), (there, other) = ends
        with open(there) as netns:
            netns_links.inside(here, lambda ip: ip.pair(wire, other, netns.fileno(), mtu=netns_links.WIRE_MTU))

    def _emulator(self, link: LinkSpec) -> LinkEmulator:
        """The one object per link, which owns the child process; `state` calls this without the lock."""
        known = self._emulators.get(link.name)
        return known or self._emulators.setdefault(
            link.name, LinkEmulator(self._directory / f"{link.name}.sock", link.name)
        )

    def _tunnel(self, spec: FabricSpec, link: LinkSpec, kind: str) -> Tunnel:
        known = self._tunnels.get((link.name, kind))
        if known is not None:
            return known
        index = [join.name for join in spec.effective_links()].index(link.name)
        keys = vpn_catalog.directory(self._directory, link.name, kind)
        made = vpn_catalog.KINDS[kind](keys, link.name, self._ends(spec, link), index, BRIDGE)
        return self._tunnels.setdefault((link.name, kind), made)  # atomic; see `_emulator`


def _emulation(link: LinkSpec) -> str:
    """`none` for a link that declares nothing, `netem` where that is equivalent (see there), else `wherry-link`."""
    if not any(direction.declares() for direction in link.directions()):
        return "none"
    return "netem" if netem.fits(link) else "wherry-link"


def directory(instance: Instance) -> Path:
    """The directory with the sockets and keys of an instance's links."""
    return instance.run / "links"


def sweep(instance: Instance) -> None:
    """Removes the files of links; their processes end with their namespaces."""
    vpn_catalog.remove_stale(directory(instance))
    shutil.rmtree(directory(instance), ignore_errors=True)
    try:
        instance.run.rmdir()
    except OSError:  # not empty: a daemon uses it
        return
