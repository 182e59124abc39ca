"""WireGuard between the gateways of two sites. It carries IP packets, so frames travel in a VXLAN inside it.

    site a:  bridge lan -- y1 (VXLAN) -- w..0 [100.65.N.1] -- s1 [100.64.N.1] ---- link ---- [100.64.N.2] s0 -- w..1 ...

    9000 bytes of a frame's packet + 50 of the VXLAN's headers + at most 80 of WireGuard's fit into the link's 9216

The kernel's WireGuard is used if it has one, else the program `wireguard-go` at each site; `wg` configures both. Keys
are made for each link, and passed in files that only root can read, so no command line and no log contains one. The
name of the interface is a hash of the link's directory, as sockets of `wireguard-go` share one directory across
namespaces.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import zlib
from pathlib import Path

from wherry.fabric import netns_links
from wherry.fabric.netns_links import NetnsLinks
from wherry.fabric.run_program import output_of, succeeds
from wherry.fabric.vpn_gateway import Gateway, inside
from wherry.fabric.vpn_tunnel import Tunnel

PROGRAM = "wireguard-go"
PORT = 51820
"""The port that WireGuard's documentation uses, of the first link; each has one of its own, as several may meet at a
site."""
_FIRST_VNI = 2**23
"""VNI of the first link's VXLAN: above the numbers of clusters, which have VXLANs of the same port at a site."""
_MTU = netns_links.WIRE_MTU - 80
_KEEPALIVE = "5"
"""Seconds between keepalives; the first is sent at once and starts the handshake."""
_SOCKETS = Path("/var/run/wireguard")
"""The directory of wireguard-go's sockets, in which `wg` finds them."""


@functools.cache
def kernel() -> bool:
    """True when the kernel has WireGuard, as probed in a temporary namespace."""
    if not shutil.which("ip") or not shutil.which("unshare"):
        return False
    words = ["unshare", "--net", "ip", "link", "add", "probe0", "type", "wireguard"]
    return succeeds(words, "the kernel's WireGuard could not be tried")


def missing() -> list[str]:
    """The programs that are needed and not installed."""
    needed = ["wg"] if kernel() else ["wg", PROGRAM]
    return [program for program in needed if shutil.which(program) is None]


class WireGuard(Tunnel):
    """The two gateways of one link."""

    def _gateway(self, side: int, netns: str) -> Gateway:
        return Gateway(self._directory, side, netns)

    def down(self) -> None:
        if self._directory.exists():
            super().down()
            for side, (_, wire) in enumerate(self._ends):
                self._inside(side, functools.partial(NetnsLinks.remove, name=_frames(wire)))

    def _runs(self, side: int) -> bool:
        return self._exists(side) if kernel() else super()._runs(side)

    def _end(self, side: int) -> None:
        """Also removes the interface: the kernel's outlives the gateway."""
        super()._end(side)
        self._inside(side, functools.partial(NetnsLinks.remove, name=_interface(self._directory, side)))
        forget(self._directory, side)

    def _make(self) -> None:
        keys = [self._key(side) for side in (0, 1)]
        restarted = not self.alive()
        for side in (0, 1):
            if kernel():
                self._inside(side, functools.partial(NetnsLinks.wireguard, name=_interface(self._directory, side)))
            elif self._gateways[side].pid() is None:
                forget(self._directory, side)  # the socket of a dead one, which answers nothing
                self._gateways[side].start([PROGRAM, "-f", _interface(self._directory, side)], {"LOG_LEVEL": "error"})
        for side in (0, 1):
            self._until(functools.partial(self._exists, side), "start")
        if restarted:  # side 0 would trust the old session with side 1 for another 15 s
            self._wg(0, "set", _interface(self._directory, 0), "peer", keys[1], "remove")
        for side in (1, 0):  # the responder before the initiator
            self._set_up(side, keys[1 - side])

    def _set_up(self, side: int, peer: str) -> None:
        name, frames, port = _interface(self._directory, side), _frames(self._ends[side][1]), PORT + self._index
        here, there = (f"100.65.{self._index}.{1 + which}" for which in (side, 1 - side))
        own = ["private-key", str(self._directory / f"{side}.key"), "listen-port", str(port)]
        # Only side 0 initiates: simultaneous handshakes over a link with a long latency keep invalidating each other.
        initiate = ["endpoint", f"{self._outer[1]}:{port}", "persistent-keepalive", _KEEPALIVE] if side == 0 else []
        self._wg(side, "set", name, *own, "peer", peer, "allowed-ips", f"{there}/32", *initiate)
        self._inside(side, functools.partial(NetnsLinks.attach, name=name, bridge=None, mtu=_MTU))
        self._inside(side, functools.partial(NetnsLinks.address, name=name, address=f"{here}/30"))
        self._inside(
            side,
            functools.partial(NetnsLinks.vxlan, name=frames, number=_FIRST_VNI + self._index, own=here, others=[there]),
        )
        self._inside(
            side, functools.partial(NetnsLinks.attach, name=frames, bridge=self._bridge, mtu=netns_links.UNDERLAY_MTU)
        )

    def _connected(self, side: int) -> bool:
        words = self._wg(side, "show", _interface(self._directory, side), "latest-handshakes").split()
        return len(words) == 2 and words[1] != "0"

    def _exists(self, side: int) -> bool:
        name = _interface(self._directory, side)
        found: bool = self._inside(side, functools.partial(NetnsLinks.exists, name=name))
        return found and (kernel() or answers(name))

    def _key(self, side: int) -> str:
        """The public key of a gateway. Makes the private key if it is missing."""
        path, new = self._directory / f"{side}.key", self._directory / f"{side}.new"
        if not path.exists():
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(_run(["wg", "genkey"]))
            new.replace(path)
        return _run(["wg", "pubkey"], path.read_text()).strip()

    def _wg(self, side: int, *words: str) -> str:
        return _run(inside(self._ends[side][0], "wg", *words))

    def _inside(self, side: int, act: functools.partial[netns_links.Result]) -> netns_links.Result:
        return netns_links.inside(self._ends[side][0], act)


def answers(interface: str) -> bool:
    """True when wireguard-go listens at the interface's socket. `wg` takes a socket that is bound but does not listen
    yet for a dead gateway's, removes it, and reports that the kernel has no WireGuard."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)  # a gateway that hangs accepts nothing
        try:
            probe.connect(str(_SOCKETS / f"{interface}.sock"))
        except OSError:
            return False
    return True


def forget(directory: Path, side: int) -> None:
    """Removes the socket of a killed gateway."""
    forget_socket(_interface(directory, side))


def forget_socket(interface: str) -> None:
    """The same for one interface."""
    (_SOCKETS / f"{interface}.sock").unlink(missing_ok=True)


def _interface(directory: Path, side: int) -> str:
    """At most 15 letters, and unique on this machine."""
    return f"w{zlib.crc32(str(directory).encode()):08x}-{side}"


def _frames(wire: str) -> str:
    """`s1` -> `y1`."""
    return f"y{wire[1:]}"


def _run(words: list[str], given: str | None = None) -> str:
    what = f"{' '.join(words[words.index('wg') :][:2])} failed"
    return output_of(words, what, "apt-get install wireguard-tools", given)
