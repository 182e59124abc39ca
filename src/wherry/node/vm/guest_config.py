"""What a guest is told of itself: words of its kernel's command line, and files that come with its RAM disk.

Invariant: the key is in the files only, as every program in the guest can read the command line. Both are read by
native/guest/main.c.
"""

from __future__ import annotations

from io import BytesIO

from wherry.model.network import PREFIX
from wherry.node.protocol import Placement
from wherry.node.vm.image import cpio


def identity(place: Placement) -> list[str]:
    """The words of the command line that tell a guest who it is."""
    node = place.node
    words = [
        f"wherry.name={node.name}",
        f"wherry.address={node.address}/{PREFIX}",
        f"wherry.mac={node.mac}",
        f"wherry.mtu={place.nic.mtu}",
        f"wherry.user={place.user}",
    ]
    return words if place.nic.checksum_offload else [*words, "wherry.checksum=off"]


def archive(place: Placement) -> bytes:
    """The node's key and hosts file, as a second archive to be put behind its RAM disk."""
    out = BytesIO()
    key, hosts = place.key.get_secret_value().encode(), place.hosts_file.encode()
    cpio.write(out, [cpio.directory("given"), cpio.file("given/key", key, 0o600), cpio.file("given/hosts", hosts)])
    return out.getvalue()
