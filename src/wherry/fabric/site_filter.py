"""Keeps plain packets of clusters inside a site, by nftables in the machine's own network.

A VXLAN takes packets of every sender. These rules let packets of our clusters in only if a host of this site sent them
and no router forwarded them (a router lowers the TTL, which begins at its maximum, so nobody behind one can pretend to
be a neighbour; RFC 5082), and out only to such hosts. They are at the hook for packets to this machine, where fragments
have been put together. Packets of other programs' VXLANs are not touched.

Invariant: the table is complete whenever it is there, as nft replaces it at once.
"""

from __future__ import annotations

from collections.abc import Collection

from wherry.base.errors import Code, Refused
from wherry.fabric.netns_links import MACHINE, VXLAN_PORT
from wherry.fabric.nft import nft

TTL = 255
_REMEDY = "apt-get install nftables; or encryption: always, in the fabric file"


class SiteFilter:
    """The rules of one instance at this machine."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._rules = ""
        """As this process has set them."""

    def set(self, near: Collection[str], networks: Collection[int]) -> None:
        """Lets packets of these VXLAN identifiers come from and go to these addresses alone. Refused without nft."""
        rules = _rules(sorted(near), sorted(networks))
        if rules != self._rules:
            self._nft("-f", "-", text=f"{self._forgotten()}table ip {self._table} {{\n{rules}}}\n")
            self._rules = rules

    def exists(self) -> bool:
        """False when there are no rules, so the next `set` makes them: somebody who loads a firewall anew may begin by
        removing all."""
        found = f"table ip {self._table}" in self._nft("list", "tables", "ip").splitlines()
        if not found:
            self._rules = ""
        return found

    def remove(self) -> None:
        """Removes the rules, if they are there."""
        if self.exists():
            self._nft("-f", "-", text=self._forgotten())
        self._rules = ""

    def _forgotten(self) -> str:
        return f"add table ip {self._table}\ndelete table ip {self._table}\n"

    def _nft(self, *words: str, text: str = "") -> str:
        try:
            return nft(MACHINE, *words, text=text)
        except Refused as error:
            what = "plain packets of clusters cannot be kept inside their site"
            raise Refused(Code.UNSUPPORTED, what, error.why, _REMEDY) from None


def _rules(near: Collection[str], networks: Collection[int]) -> str:
    vnis, hosts = ", ".join(map(str, networks)), ", ".join(near)
    ours = f"udp dport {VXLAN_PORT} @th,96,24 {{ {vnis} }}"  # behind UDP's 8 bytes, and 4 of VXLAN's flags
    arriving = f"{ours} ip saddr {{ {hosts} }} ip ttl {TTL} accept\n{ours} drop\n" if networks else ""
    leaving = f"{ours} ip daddr != {{ {hosts} }} drop\n" if networks else ""
    return (
        f"chain arriving {{\ntype filter hook input priority raw; policy accept;\n{arriving}}}\n"
        f"chain leaving {{\ntype filter hook output priority raw; policy accept;\n{leaving}}}\n"
    )
