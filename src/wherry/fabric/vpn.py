"""Which VPNs there are between the gateways of two sites, which are the sites' own namespaces: frames of one bridge
reach the other inside encrypted datagrams, as between sites that share nothing but the internet.

Invariant: a link has one overlay at most, in a directory that is named by link and kind: what another left is found.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from wherry.base.errors import Code, Refused
from wherry.fabric import openvpn, wireguard
from wherry.fabric.openvpn import OpenVpn
from wherry.fabric.tunnel import Tunnel
from wherry.fabric.wireguard import WireGuard
from wherry.model.spec.fabric import LinkSpec

KINDS: dict[str, type[Tunnel]] = {"openvpn": OpenVpn, "wireguard": WireGuard}
_PACKAGES = {"wg": "wireguard-tools"}
"""Debian's packages, where they are not named as the program is."""


def check(link: LinkSpec) -> None:
    """Refuses an overlay that this machine cannot make, with the reason."""
    if missing := lacks(link.overlay):
        raise Refused(
            Code.UNSUPPORTED,
            f"the link {link.name} cannot have the overlay {link.overlay}",
            f"not installed: {', '.join(missing)}",
            remedy(missing),
        )


def lacks(kind: str) -> list[str]:
    """The programs that an overlay needs and that are not installed."""
    if kind == "wireguard":
        return wireguard.missing()
    return [program for program in openvpn.NEEDED if shutil.which(program) is None] if kind == "openvpn" else []


def remedy(missing: list[str]) -> str:
    """The command that installs these programs."""
    return f"apt-get install {' '.join(_PACKAGES.get(program, program) for program in missing)}"


def directory(links: Path, link: str, kind: str) -> Path:
    """Where the overlay of a link has its keys."""
    return links / f"{link}.{kind}"


def sweep(links: Path) -> None:
    """Removes what overlays that ended with their namespaces left elsewhere."""
    for found in links.glob("*.wireguard"):
        for side in (0, 1):
            wireguard.forget(found, side)
