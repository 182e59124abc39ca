"""Keeps the QEMUs of an emulated host from its network, but for the destination of a move that needs it.

A QEMU's network namespace is its host's, where libvirtds listen that are root and ask nobody who he is. So the host's
own rules drop each packet of QEMU's user that begins something. QEMU works without such packets: a guest's frames go by
its TAP, an incoming move is answered, and the connection of a move is made by libvirtd, which hands it over. Only when
a move has several connections (VIR_MIGRATE_PARALLEL), QEMU makes them itself, when it begins to send.
Invariant: a libvirtd runs only where the rules are.
"""

from __future__ import annotations

from wherry.fabric.nft import nft
from wherry.node.vm.qemu_user import QEMU_UID

_SECONDS = 150
"""For which a destination is open: longer than a move may take to be set up (`migration_job`)."""
_RECEIVING = "49152-49215"
"""Ports at which libvirt has QEMUs receive."""
_RULES = f"""\
add table inet qemu
add set inet qemu destinations {{ type ipv4_addr; flags timeout; }}
add chain inet qemu own
add chain inet qemu output {{ type filter hook output priority 0; policy accept; }}
flush chain inet qemu own
flush chain inet qemu output
add rule inet qemu own tcp flags & (syn | ack) != syn accept
add rule inet qemu own ip daddr @destinations tcp dport {_RECEIVING} accept
add rule inet qemu own drop
add rule inet qemu output meta skuid {QEMU_UID} jump own
"""


def guard(netns: str) -> None:
    """Makes the rules in the namespace of a host, whether or not they are there. UNSUPPORTED without nftables."""
    nft(netns, "-f", "-", text=_RULES)


def open_destination(netns: str, address: str) -> None:
    """Lets QEMUs of this namespace begin to send to those at `address`, for as long as a move needs to begin."""
    known, element = f"element inet qemu destinations {{ {address} }}", f"{address} timeout {_SECONDS}s"
    rules = f"{_RULES}add {known}\ndelete {known}\nadd element inet qemu destinations {{ {element} }}\n"
    nft(netns, "-f", "-", text=rules)  # removed first, as an existing one would keep its time
