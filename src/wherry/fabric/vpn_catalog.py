"""The VPNs that can join two sites: they carry frames between the sites' bridges in encrypted datagrams, as between
sites that share only the internet.

Invariant: a link has at most one overlay, in a directory named by link and kind, so the remains of another kind are
found and removed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.fabric import openvpn, softether, wireguard
from wherry.fabric.openvpn import OpenVpn
from wherry.fabric.softether import SoftEther
from wherry.fabric.vpn_tunnel import Tunnel
from wherry.fabric.wireguard import WireGuard
from wherry.model.spec.fabric import LinkSpec

KINDS: dict[str, type[Tunnel]] = {"openvpn": OpenVpn, "wireguard": WireGuard, "softether": SoftEther}
_SERVICE = "softether-vpnserver"
"""Debian's package of SoftEther. It starts a server with open ports and without a password, unless that is masked."""
_PACKAGES = {
    **{"wg": "wireguard-tools", softether.PROGRAM: _SERVICE},
    **dict.fromkeys(softether.TOOLS, "util-linux"),
}
"""Debian's packages, where the name differs from the program's."""


def check(link: LinkSpec) -> None:
    """Refuses an overlay whose programs are not installed."""
    if missing := missing_programs(link.overlay):
        raise Refused(
            Code.UNSUPPORTED,
            f"the link {link.name} cannot have the overlay {link.overlay}",
            f"not installed: {', '.join(missing)}",
            remedy(missing),
        )


def missing_programs(kind: str) -> list[str]:
    """The programs that an overlay needs and this machine lacks."""
    if kind == "wireguard":
        return wireguard.missing()
    needed = {"openvpn": openvpn.NEEDED, "softether": softether.NEEDED}.get(kind, ())
    return [program for program in needed if shutil.which(program) is None]


def remedy(missing: list[str]) -> str:
    """The command that installs these programs."""
    packages = dict.fromkeys(_PACKAGES.get(program, program) for program in missing)
    before = f"systemctl mask {_SERVICE} && " if _SERVICE in packages else ""
    after = " (Debian 12; 13 has no SoftEther)" if before else ""
    return f"{before}apt-get install {' '.join(packages)}{after}"


def directory(links: Path, link: str, kind: str) -> Path:
    """The directory with the keys of a link's overlay."""
    return links / f"{link}.{kind}"


def remove_stale(links: Path) -> None:
    """Removes the sockets of overlays that ended with their namespaces."""
    for found in links.glob("*.wireguard"):
        for side in (0, 1):
            wireguard.forget(found, side)
