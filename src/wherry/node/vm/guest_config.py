"""The configuration of a guest: words of its kernel's command line, and files appended to its RAM disk.

Invariant: the key is only in the files, as every program in the guest can read the command line. native/guest/main.c
reads both.
"""

from __future__ import annotations

from io import BytesIO

from wherry.model.network import PREFIX
from wherry.node.protocol import Placement
from wherry.node.vm.image import cpio


def identity(placement: Placement) -> list[str]:
    """The words of the command line with the guest's identity and network."""
    node = placement.node
    words = [
        f"wherry.name={node.name}",
        f"wherry.address={node.address}/{PREFIX}",
        f"wherry.mac={node.mac}",
        f"wherry.mtu={placement.nic.mtu}",
        f"wherry.user={placement.user}",
    ]
    return words if placement.nic.checksum_offload else [*words, "wherry.checksum=off"]


def archive(placement: Placement) -> bytes:
    """A cpio archive with the node's key and hosts file, to be appended to its RAM disk."""
    out = BytesIO()
    key, hosts = placement.key.get_secret_value().encode(), placement.hosts_file.encode()
    cpio.write(out, [cpio.directory("given"), cpio.file("given/key", key, 0o600), cpio.file("given/hosts", hosts)])
    return out.getvalue()
