"""SoftEther VPN between the gateways of two sites: with a TAP in each bridge, it carries frames of up to 1600 bytes.

    site a:  bridge lan -- tap_s1 - vpnserver - s1 [100.64.N.1] ---- link ---- [100.64.N.2] s0 - vpnserver - tap_s0 ...

Both are `vpnserver`: side 0 listens, side 1 is connected to it (a cascade). Its directories are compiled in, so it runs
in a mount namespace whose root has /usr, devices, /proc and the directory of this gateway, and nothing else of the
machine. The servers lower the segment size of TCP between hosts, so that it fits (see `softether_config`).
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from wherry.fabric import gateway_certificates, netns_links, softether_config
from wherry.fabric.gateway_certificates import RSA
from wherry.fabric.netns_links import NetnsLinks
from wherry.fabric.softether_config import ESTABLISHED, PORT, Identity
from wherry.fabric.vpn_gateway import Gateway
from wherry.fabric.vpn_tunnel import Tunnel

PROGRAM = "vpnserver"
TOOLS = ("unshare", "pivot_root", "setpriv")
NEEDED = (PROGRAM, gateway_certificates.PROGRAM, *TOOLS)
_ENTER_ROOT = """
root=$1 state=$2; shift 2
mount -t tmpfs -o mode=0755 none "$root"
cd "$root"
mkdir -p dev old proc run/softether tmp usr var/lib/softether var/log/softether
for link in bin lib lib64; do ln -s "usr/$link" "$link"; done
for each in dev proc usr; do mount --bind "/$each" "$each"; done
mount --bind "$state" var/lib/softether
pivot_root . old
umount -l /old
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,+net_admin "$@"
"""
"""Makes the root in a mount namespace, and executes the program there with one capability."""
_RUN = ("unshare", "--mount", "--propagation", "private", "sh", "-euc", _ENTER_ROOT, "sh")


class SoftEther(Tunnel):
    """The two gateways of one link."""

    def _gateway(self, side: int, netns: str) -> Gateway:
        return Gateway(self._directory, side, netns)

    def _make(self) -> None:
        made = [gateway_certificates.made(self._directory, side, self._name, RSA) for side in (0, 1)]
        keys, certificates = ([gateway_certificates.der(path) for path in paths] for paths in zip(*made, strict=True))
        if not self._runs(0):
            self._end(1)  # it would wait for 10 s before it connects again
        for side in (0, 1):
            if not self._runs(side):
                self._start(side, Identity(certificates[side], keys[side]), certificates[1 - side])
            self._until(functools.partial(self._ready, side), "start", range(side + 1))
        for netns, wire in self._ends:
            tap = softether_config.tap_name(wire)
            join = functools.partial(NetnsLinks.attach, name=tap, bridge=self._bridge, mtu=softether_config.MTU)
            netns_links.inside(netns, join)

    def _start(self, side: int, own: Identity, peer: bytes) -> None:
        state, root = (self._directory / f"{side}.{kind}" for kind in ("state", "root"))
        for path in (state, root):
            path.mkdir(exist_ok=True, mode=0o700)
        text = softether_config.text(side, self._ends[side][1], self._outer, own, peer)
        with open(os.open(state / "vpn_server.config", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        words = [*_RUN, str(root), str(state), PROGRAM, "start", "--foreground"]
        self._gateways[side].start(words, {"LC_ALL": "C", "LANG": "C"})  # which choose the language of its output

    def _ready(self, side: int) -> bool:
        """True when it has made its TAP, and side 0 listens."""
        netns, wire = self._ends[side]
        exists = functools.partial(NetnsLinks.exists, name=softether_config.tap_name(wire))
        return netns_links.inside(netns, exists) and (side == 1 or _listens(self._gateways[0].pid()))

    def _connected(self, side: int) -> bool:
        """By the output of side 1, whichever side is asked for: side 0 does not print who has connected to it."""
        return ESTABLISHED in self._gateways[1].output()


def _listens(pid: int | None) -> bool:
    """True when TCP listens at the port in the namespace of a process (proc(5), /proc/net/tcp)."""
    try:
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return False
    return any(line.split()[1].endswith(f":{PORT:04X}") and line.split()[3] == "0A" for line in lines)
