"""OpenVPN between the gateways of two sites: with a TAP in each bridge, it carries the bridges' frames unchanged.

    site a:  bridge lan -- v1 (TAP) - openvpn - s1 [100.64.N.1] ---- link ---- [100.64.N.2] s0 - openvpn - (TAP) v0 ...

Each gateway trusts exactly one certificate, the other's (OpenVPN 2.6: --peer-fingerprint). Both are made for this link
and never leave the run directory.
"""

from __future__ import annotations

import functools

from wherry.fabric import gateway_certificates, netns_links
from wherry.fabric.gateway_certificates import ELLIPTIC
from wherry.fabric.netns_links import NetnsLinks
from wherry.fabric.vpn_gateway import Gateway
from wherry.fabric.vpn_tunnel import Tunnel

NEEDED = ("openvpn", gateway_certificates.PROGRAM)
PORT = 1194
"""The port that IANA gave to OpenVPN."""
_BUFFERS = ("--txqueuelen", "10000", "--sndbuf", "4194304", "--rcvbuf", "4194304")


class OpenVpn(Tunnel):
    """The two gateways of one link."""

    def _gateway(self, side: int, netns: str) -> Gateway:
        return Gateway(self._directory, side, netns)

    def _make(self) -> None:
        made = [gateway_certificates.made(self._directory, side, self._name, ELLIPTIC) for side in (0, 1)]
        prints = [gateway_certificates.fingerprint(certificate) for _, certificate in made]
        for side, gateway in enumerate(self._gateways):
            if gateway.pid() is None:
                gateway.start(self._words(side, prints[1 - side]))
        for netns, wire in self._ends:
            tap = _tap(wire)
            self._until(
                functools.partial(netns_links.inside, netns, functools.partial(NetnsLinks.exists, name=tap)), "start"
            )
            join = functools.partial(NetnsLinks.attach, name=tap, bridge=self._bridge, mtu=netns_links.UNDERLAY_MTU)
            netns_links.inside(netns, join)

    def _connected(self, side: int) -> bool:
        return "Initialization Sequence Completed" in self._gateways[side].output()

    def _words(self, side: int, peer: str) -> list[str]:
        directory, (_, wire) = self._directory, self._ends[side]
        return [
            *("openvpn", "--dev", _tap(wire), "--dev-type", "tap", "--tun-mtu", str(netns_links.UNDERLAY_MTU)),
            *("--mssfix", "0", "--proto", "udp", "--port", str(PORT), "--remote", self._outer[1 - side]),
            *("--local", self._outer[side], *_BUFFERS),
            *("--cert", str(directory / f"{side}.crt"), "--key", str(directory / f"{side}.key")),
            *("--peer-fingerprint", peer, "--ping", "5", "--ping-restart", "30", "--persist-tun", "--persist-key"),
            *("--connect-retry", "1", "2", "--resolv-retry", "infinite", "--verb", "3", "--suppress-timestamps"),
            *(("--tls-server", "--dh", "none") if side == 0 else ("--tls-client",)),
        ]


def _tap(wire: str) -> str:
    """`s1` -> `v1`."""
    return f"v{wire[1:]}"
